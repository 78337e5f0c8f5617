# shellcheck shell=bash disable=SC2154
page docs/mixers.md
small pretrain_gpt "$tiny" --set dataset_config.tokenizer_type=byte --set model_config.linear_num_key_heads=2 \
  --set model_config.linear_num_value_heads=2 --set model_config.linear_key_head_dim=8 --set model_config.linear_value_head_dim=8

runs 'pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml --set model_config.layer_types=linear_attention'
leaves output/checkpoint/step_00000002/model.safetensors
