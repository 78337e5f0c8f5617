# shellcheck shell=bash disable=SC2154
page docs/mindformers2.md
small pretrain_gpt "--set training_config.num_threads=1"

# The published file with the sizes of a small model, and a preset.
prepare preprocess_data --input README.md --output_prefix small --tokenizer_type byte
prepare sed -e 's|/path/to/data|small|; s|steps: 10|steps: 2|; s|vocab_size: .*|vocab_size: 264|' \
  -e 's|seq_length: 4096|seq_length: 16|; s|hidden_size: .*|hidden_size: 16|' \
  -e 's|intermediate_size: .*|intermediate_size: 8|; s|_lora_rank: .*|_lora_rank: 8|' \
  -e 's|head_dim: .*|head_dim: 8|; w deepseek3_1b.yaml' tests/data/mindformers2/deepseek3_1b.yaml
prepare cp examples/gpt/pretrain_gpt_tiny.yaml run.yaml
runs 'pretrain_gpt --config_path FILE' 'FILE=deepseek3_1b.yaml --dry_run'
says 'parameters'
runs 'pretrain_gpt --config_path deepseek3_1b.yaml --set model.num_hidden_layers=2'
leaves output/config.yaml
runs 'pretrain_gpt --config_path deepseek3_1b.yaml --convert_config 1.x'
says 'multi_latent_attention: True'
runs 'pretrain_gpt --config_path run.yaml --convert_config 2.0 --to run2.yaml'
leaves run2.yaml
runs 'pretrain_gpt --config_path run2.yaml --print_config'
says 'num_layers: 4'
