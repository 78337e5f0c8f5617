#!/usr/bin/env bash
# hosts_test.sh MPIRUN PRETRAIN_GPT MISBEHAVE PRESET [HYDRA PRETRAIN_GPT_ON_MPICH]: ranks on two hosts that have
# nothing but a network between them: what they train, and how a job ends or what it says when that
# network fails.
set -uo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source-path=SCRIPTDIR
. "$here/hosts.sh"
in_namespaces "$0" "$@"
mpirun="$1"
program="$2"
misbehave="$3"
preset="$4"
hydra="${5:-}"
on_mpich="${6:-}"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" || exit 1
failures=0
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1
export TAPESTRY_COMM_TIMEOUT=600 TAPESTRY_MPI_TIMEOUT=120 TAPESTRY_COMM_STRAGGLERS=0
unset OMPI_MCA_orte_tmpdir_base # a folder of each host's own

fail() {
  echo "FAILED: $*" >&2
  tail -n 25 "$scratch"/*.txt | cut -c 1-400 | sed 's/^/    /' >&2
  failures=$((failures + 1))
}

# until_true COMMAND...: waits for it, for two minutes at most.
until_true() {
  local _
  for _ in {1..1200}; do
    "$@" && return 0
    sleep 0.1
  done
  return 1
}
gone() { ! kill -0 "$1" 2>/dev/null; }
nobody_on() { [[ -z "$(processes_on "$1")" ]]; }
steps() { cat "$1/output/metrics.jsonl" 2>/dev/null | wc -l; }
has_steps() { (($(steps "$1") >= $2)); }
losses() { grep -o '"loss":[^,}]*' "$1/output/metrics.jsonl"; }

small=(--set dataset_config.tokenizer_type=byte --set model_config.num_layers=1
  --set model_config.seq_length=32 --set dataset_config.batch_size=2
  --set training_config.save_interval=1000000)

# on_hosts MPI: sets `start` to what starts four ranks, two on each host.
on_hosts() {
  if [[ "$1" == mpich ]]; then
    start=("$hydra" -launcher rsh -launcher-exec "$here/remote_shell.sh" -hosts alpha:2,beta:2 -n 4
      "$on_mpich")
  else
    start=("$mpirun" --mca plm_rsh_agent "$here/remote_shell.sh" --host alpha:2,beta:2 --bind-to none
      -x OMP_NUM_THREADS -x TAPESTRY_COMM_TIMEOUT -x TAPESTRY_MPI_TIMEOUT -x TAPESTRY_COMM_STRAGGLERS -n 4 "$program")
  fi
}

# train FOLDER OPTION...: a run of `start` in a folder of its own, from alpha.
train() {
  local folder="$1"
  shift
  mkdir "$folder"
  # Prepared before: ranks wait for the one that prepares it, here on a machine that does much else.
  [[ ! -d one_host/dataset ]] || cp -r one_host/dataset "$folder"
  cd "$folder" || return 1
  run_on alpha "${start[@]}" --config_path "$preset" "${small[@]}" "$@" \
    >"$scratch/$folder.txt" 2>"$scratch/$folder.errors.txt"
  local code=$?
  cd ..
  return "$code"
}

make_hosts "$scratch/hosts"
# The losses of four ranks on one host, which exchange them through its memory.
start=("$mpirun" --oversubscribe --bind-to none -n 4 "$program")
train one_host --set training_config.training_iters=5 || fail "four ranks on one host"
reference="$(losses one_host)"
[[ "$(wc -l <<<"$reference")" == 5 ]] || fail "losses of four ranks on one host"

same_losses() { # MPI
  on_hosts "$1"
  train "two_hosts_$1" --set training_config.training_iters=5 || fail "two hosts under $1"
  [[ "$(losses "two_hosts_$1")" == "$reference" ]] || fail "two hosts under $1 have other losses"
}

# A cable is cut: the ranks on both sides say which host they cannot reach, the job ends, and nothing is
# left on either host.
cut_cable() { # MPI
  local folder="cut_$1" job
  on_hosts "$1"
  TAPESTRY_COMM_TIMEOUT=6 train "$folder" --set training_config.training_iters=1000000 &
  job=$!
  until_true has_steps "$folder" 3 || fail "the run whose cable is cut starts ($1)"
  cut_link beta
  until_true gone "$job" || fail "the job goes on without a network ($1)"
  wait "$job" && fail "a job that loses a host succeeds ($1)"
  cat "$folder".errors.txt "$folder"/output/log/rank_*/error.log >"$folder.all.txt"
  grep -qE "rank [01] on alpha has heard nothing for 6 seconds; cannot reach host beta \(ranks 2 and 3\)" \
    "$folder.errors.txt" || fail "the host that is cut off is not named ($1)"
  grep -qE "rank [23] on beta has heard nothing for 6 seconds; cannot reach host alpha \(ranks 0 and 1\)" \
    "$folder.all.txt" || fail "the ranks that are cut off do not name the others ($1)"
  until_true nobody_on alpha || fail "processes are left on alpha ($1): $(processes_on alpha)"
  until_true nobody_on beta || fail "processes are left on beta ($1): $(processes_on beta)"
  mend_link beta
}

# end_job JOB: the quick end of a run that has said what it should.
end_job() {
  local line
  while read -r line; do
    kill -9 "${line%% *}" 2>/dev/null
  done < <(processes_on alpha; processes_on beta)
  wait "$1" 2>/dev/null
}

said() { grep -qsF "$2" "$1.txt"; }

# A cable becomes slow: the log names the two hosts between which it is.
slow_cable() {
  local job
  on_hosts openmpi
  TAPESTRY_COMM_STRAGGLERS=2 train slow --set training_config.training_iters=1000000 &
  job=$!
  until_true has_steps slow 30 || fail "the run whose cable becomes slow starts"
  slow_link beta 100mbit
  until_true said slow "the network between alpha and beta holds up the job" || fail "the slow cable is not named"
  grep -qE "ranks? waits? [0-9]+ % of the time for what comes over it, at [0-9.]+ MB/s" slow.txt ||
    fail "how slow the cable is"
  end_job "$job"
  mend_speed beta
}

# A rank is slow: it is named with its host.
slow_rank() {
  TAPESTRY_COMM_STRAGGLERS=1 run_on alpha timeout 300 "$mpirun" --mca plm_rsh_agent "$here/remote_shell.sh" \
    --host alpha:2,beta:2 --bind-to none -x TAPESTRY_COMM_STRAGGLERS -n 4 "$misbehave" one_is_slow \
    >slow_rank.txt 2>&1 || fail "ranks of which one is slow"
  grep -qF "rank 3 on beta holds up the job: the others wait" slow_rank.txt || fail "the slow rank is not named"
}

same_losses openmpi
cut_cable openmpi
slow_cable
slow_rank
if [[ -n "$on_mpich" ]]; then
  same_losses mpich
  cut_cable mpich
else
  echo "without MPICH, which is not installed"
fi
((failures == 0)) && echo "ok"
exit $((failures > 0))
