# shellcheck shell=bash disable=SC2154
page docs/configuration.md
runs 'pretrain_gpt --config_path FILE' FILE=examples/gpt/pretrain_gpt_tiny.yaml
leaves output/config.yaml
