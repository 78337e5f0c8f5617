# shellcheck shell=bash disable=SC2154
page docs/questions.md
small pretrain_gpt "$tiny" --set dataset_config.tokenizer_type=byte

runs 'pretrain_gpt --dry_run --config_path FILE' FILE=examples/gpt/pretrain_gpt_tiny.yaml
says 'a step'
runs 'pretrain_gpt --version'
prepare pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml
runs 'pretrain_gpt --plot RUN' RUN=output
says 'loss per token'
runs 'pretrain_gpt --resume DIR' DIR=output
says 'going on after step 2'
runs 'mpirun --version'
says 'Open MPI'

no_command 'mpirun --oversubscribe'
no_command 'mpirun has detected an attempt to run as root'
no_command 'srun has started 4 processes without telling them of each other'
no_command 'srun --mpi=none'
no_command 'srun --mpi=pmix'
