# shellcheck shell=bash disable=SC2154
page docs/mtp.md
small pretrain_gpt "$tiny" --set dataset_config.tokenizer_type=byte --set moe_config.moe_ffn_hidden_size=32

runs 'pretrain_gpt --config_path examples/gpt/pretrain_gpt_moe.yaml --set model_config.mtp_num_layers=1'
says 'mtp_1_loss: '
leaves output/checkpoint/step_00000002/model.safetensors
prepare grep -q '"mtp_1_loss"' output/metrics.jsonl
