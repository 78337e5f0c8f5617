# shellcheck shell=bash disable=SC2154
page docs/precision.md
small pretrain_gpt "$tiny" --set dataset_config.tokenizer_type=byte --set model_config.vocab_size=512

runs 'pretrain_gpt --config_path examples/gpt/pretrain_gpt_124M.yaml --set training_config.bf16=True'
says 'computes in bfloat16'
leaves output/checkpoint/step_00000002
runs 'pretrain_gpt --version'
says 'CPU level'
