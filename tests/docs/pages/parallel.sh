# shellcheck shell=bash disable=SC2154
page docs/parallel.md
small pretrain_gpt "$tiny" --set dataset_config.tokenizer_type=byte --set training_config.training_iters=3
prepare cp examples/gpt/pretrain_gpt_tiny.yaml my.yaml

runs 'RANKS=2 examples/gpt/pretrain_gpt.sh pretrain_gpt_tiny.yaml'
says 'dp 2 |'
leaves output/log/rank_1/info.log output/checkpoint/step_00000003
prepare rm -r output
prepare bash -c 'echo "localhost slots=4" >hosts'
runs 'RANKS=4 THREADS_PER_RANK=8 HOSTFILE=hosts examples/gpt/pretrain_gpt.sh my.yaml'
says 'dp 4 |'
prepare rm -r output
runs 'mpirun -n 2 pretrain_gpt --config_path my.yaml'
says 'dp 2 |'
prepare rm -r output
runs 'cmake --preset release -B build/mpich -DTAPESTRY_MPI=mpich'
says 'Build files have been written'
runs 'pretrain_gpt --version'
says 'MPI: '
runs 'pretrain_gpt --config_path my.yaml --verify_layout "tp=2,sp,pp=2,dp=2,zero=z1" --verify_steps 3'
says 'no difference above its bound'
runs 'scripts/layout_matrix.sh llama zero=z3' 'llama=llama vpp=2'
says '1 layouts, 0 of them wrong'

unrunnable srun 'srun --mpi=pmix -n 16 --cpus-per-task=8 pretrain_gpt --config_path my.yaml' \
  'needs Slurm; the line before it is the same without' has_options pretrain_gpt --help -- --config_path
no_command 'srun --signal=USR1@120'
no_command 'srun --mpi=pmix'
no_command 'srun --mpi=pmi2'
no_command 'pretrain_gpt.sh --restarts N'
