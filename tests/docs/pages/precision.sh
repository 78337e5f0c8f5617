# shellcheck shell=bash disable=SC2154
page docs/precision.md
small pretrain_gpt "$tiny" --set dataset_config.tokenizer_type=byte --set model_config.vocab_size=512

runs 'pretrain_gpt --config_path examples/gpt/pretrain_gpt_124M.yaml --set training_config.bf16=True'
says 'computes in bfloat16'
leaves output/checkpoint/step_00000002
runs 'pretrain_gpt --version'
says 'CPU level'

prepare with_block 1 examples/gpt/pretrain_gpt_tiny.yaml float16.yaml
prepare pretrain_gpt --config_path float16.yaml --set training_config.output_dir=float16
says 'computes in float16'
says 'Loss_scale: 65536.0'
