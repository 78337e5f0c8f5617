# shellcheck shell=bash disable=SC2154
page docs/plan.md
small pretrain_gpt "$tiny" --set dataset_config.tokenizer_type=byte --set training_config.training_iters=2
export XDG_CACHE_HOME="$scratch/cache"

runs 'pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml --plan 4'
says 'plan: ranks=4'
runs 'pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml --plan 4 --memory 1.5 --to planned.yaml'
says 'wrote planned.yaml'
prepare grep -q '^# plan: ranks=4 of 4' planned.yaml
prepare mpirun -n 2 pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml
runs 'pretrain_gpt --resume output --plan 3 --to smaller.yaml'
says 'plan: ranks='
runs 'mpirun -n 4 pretrain_gpt --measure_network'
says 'measured messages between 4 ranks on one host'
