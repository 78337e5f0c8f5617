# shellcheck shell=bash disable=SC2154
page docs/hyper_connections.md
small pretrain_gpt "$tiny" --set dataset_config.tokenizer_type=byte --set model_config.num_residual_streams=3

runs 'pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml --set model_config.enable_hyper_connections=True'
leaves output/checkpoint/step_00000002/model.safetensors
prepare grep -q 'layers.0.hyper_connection.feed_forward.alpha.weight' output/checkpoint/step_00000002/model.safetensors
