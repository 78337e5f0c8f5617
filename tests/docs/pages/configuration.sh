# shellcheck shell=bash disable=SC2154
page docs/configuration.md
small pretrain_gpt "$tiny" --set dataset_config.tokenizer_type=byte
runs 'pretrain_gpt --config_path FILE' FILE=examples/gpt/pretrain_gpt_tiny.yaml
leaves output/config.yaml
