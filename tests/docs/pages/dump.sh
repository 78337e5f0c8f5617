# shellcheck shell=bash disable=SC2154
page docs/dump.md
small pretrain_gpt  # the case is small

runs 'MS_DIAGNOSTIC_DATA_PATH=$PWD pretrain_gpt --config_path tests/data/torch_dump/llama/run.yaml --dump tests/data/torch_dump/dump.json --measure_rounding 5'
leaves debug_dump/rank_0/Net/0/0/statistic.csv debug_dump/rounding.csv
runs 'accuracy compare debug_dump tests/data/torch_dump/llama/dump --html compare.html --json compare.json'
says 'compare: agree'
leaves compare.html compare.json
