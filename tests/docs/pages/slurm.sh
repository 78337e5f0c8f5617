# shellcheck shell=bash disable=SC2154
# On a cluster of its own, as tests/cluster/slurm/cluster.py makes one.
page docs/slurm.md
needs 'Slurm or munge is not installed' test -x /usr/sbin/slurmctld -a -x /usr/sbin/slurmd -a -x /usr/sbin/munged
needs 'there is no Python' command -v python3
small pretrain_gpt "$tiny" --set dataset_config.tokenizer_type=byte --set training_config.save_interval=1 \
  --set training_config.training_iters=3
prepare cp examples/gpt/pretrain_gpt_tiny.yaml my.yaml

# It ends when this shell does, whose end of the pipe it reads.
start_cluster() {
  cluster="$(mktemp -d /tmp/tapestry_docs_slurm_XXXXXX)"
  exec {hold_cluster}> >(exec python3 "$source_dir/tests/cluster/slurm/cluster.py" "$cluster" >"$cluster.out" 2>&1)
  for ((i = 0; i < 600; ++i)); do
    ! grep -q TAPESTRY_CLUSTER "$cluster.out" 2>/dev/null || break
    sleep 0.1
  done
  # shellcheck source=/dev/null
  source "$cluster.out"
  rm "$cluster.out"
  cluster_process=$!
  export OMPI_MCA_btl_tcp_if_include=lo
  unset OMPI_MCA_orte_tmpdir_base
}
stop_cluster() {
  exec {hold_cluster}>&-
  wait "$cluster_process"
}
[[ -n "$skipped" || -n "$entry" ]] || start_cluster

# ended NUMBER: waits for the end of a job.
ended() {
  for ((i = 0; i < 900; ++i)); do
    [[ "$(squeue --noheader --jobs="$1" 2>/dev/null)" ]] || return 0
    sleep 0.1
  done
  squeue
  return 1
}

runs 'sbatch --nodes=2 examples/slurm/pretrain.sbatch my.yaml'
says 'Submitted batch job 1'
runs 'squeue --me'
says 'pretrain'
prepare ended 1
runs 'scontrol show job 42' 42=1
says 'JobState=COMPLETED'
runs 'tail -n 20 pretrain-42.log' 42=1
says 'finished after 3 steps'
runs 'pretrain_gpt --version'
says 'MPI:'
runs 'srun --mpi=list'
says 'pmix'
# This is job 2.
runs 'srun --nodes=2 --ntasks=2 --cpus-per-task=1 --mpi=pmix pretrain_gpt --config_path my.yaml --overwrite'
says 'rank 1: host '

runs 'scontrol requeue 42' 42=1
runs 'scontrol update jobid=42 StartTime=now+3seconds' 42=1
prepare ended 1
prepare grep -q 'job 1, start 2' pretrain-1.log

prepare sbatch --hold --nodes=2 examples/slurm/pretrain.sbatch my.yaml
runs 'scontrol update jobid=42 NumNodes=4-4 NumTasks=4 NumCPUs=4' 42=3
prepare bash -c 'scontrol show job 3 | grep "NumNodes=4-4 NumCPUs=4 NumTasks=4"'
prepare scancel 3

runs 'sbatch --array=1-4 examples/slurm/sweep.sbatch my.yaml examples/slurm/sweep.txt'
runs 'squeue --me --array'
says 'sweep'
prepare ended 4
leaves sweep/1/checkpoint/step_00000003 sweep/4/checkpoint/step_00000003 sweep-4_3.log
runs 'pretrain_gpt --plot sweep/1 sweep/2 sweep/3 sweep/4'
says 'training'

unrunnable drill 'scripts/slurm_drill.sh --interruptions 20' \
  'takes five minutes; the test cluster.slurm does six of them' has_options scripts/slurm_drill.sh --help -- --interruptions
[[ -n "$skipped" || -n "$entry" ]] || stop_cluster
