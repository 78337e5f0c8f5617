# shellcheck shell=bash disable=SC2154
page docs/exact.md
small pretrain_gpt "$tiny" --set dataset_config.tokenizer_type=byte

runs 'pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml --set training_config.exact=True'
says 'exact: bits of the class'
leaves output/hashes.jsonl
leaves output/checkpoint/step_00000002/hashes.json
prepare grep -q '"hash":"[a-z0-9]*-[a-z]*:[0-9a-f]*"' output/metrics.jsonl
