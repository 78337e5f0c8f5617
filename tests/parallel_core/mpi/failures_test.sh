#!/usr/bin/env bash
# failures_test.sh MPIRUN MISBEHAVE: of Open MPI or MPICH; jobs that go wrong end soon, say why, and leave no process.
set -uo pipefail
mpirun="$1"
program="$2"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
failures=0
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1  # also in a container

fail() {
  echo "FAILED: $*" >&2
  sed 's/^/    /' "$scratch/out" >&2
  failures=$((failures + 1))
}

# Processes of the program that this test has started: they carry its scratch folder as a mark.
left_over() {
  local count=0 environment
  for environment in /proc/[0-9]*/environ; do
    if grep -qzxF "TAPESTRY_TEST_MARK=$scratch" "$environment" 2>/dev/null &&
      [[ "$(readlink "${environment%environ}exe" 2>/dev/null)" == "$(readlink -f "$program")" ]]; then
      count=$((count + 1))
    fi
  done
  echo "$count"
}

# run SCENARIO RANKS EXIT_CODE TEXT...: every text is in the output. "1|9": one of these codes.
run() {
  local scenario="$1" ranks="$2" expected="$3" code=0
  shift 3
  TAPESTRY_TEST_MARK="$scratch" timeout -k 1 60 \
    "$mpirun" --oversubscribe -n "$ranks" "$program" "$scenario" >"$scratch/out" 2>&1 || code=$?
  [[ $code =~ ^($expected)$ ]] || fail "$scenario on $ranks ranks: exit code $code, not $expected"
  for text in "$@"; do
    grep -qF -- "$text" "$scratch/out" || fail "$scenario on $ranks ranks: no '$text' in"
  done
  [[ "$(left_over)" == 0 ]] || fail "$scenario on $ranks ranks: processes are left"
}

export TAPESTRY_COMM_TIMEOUT=600
run fine 3 0
for ranks in 2 3; do
  run another_collective $ranks 1 "ranks disagree" "all_gather #0 of world" "all_reduce #0 of world"
  run another_size $ranks 1 "ranks disagree" "100000 elements" "100001 elements"
  run another_dtype $ranks 1 "ranks disagree" "bfloat16" "float32"
done
run another_reduction 2 1 "9 elements, sum" "9 elements, max"
run another_root 2 1 "root 0" "root 1"
run one_has_finished 3 1 "rank 1 has finished"
run no_send 2 1 "deadlock" "rank 1 waits in receive #0 of world" "for rank 0, which waits in barrier"
run crossed_groups 3 1 "deadlock" "rank 0 waits in all_reduce #0 of dp" "#0 of pp"
run one_throws 3 1 "rank 1: the disk is full"
run all_read_a_wrong_file 3 2 "config.yaml:3:5: no such key"
if [[ "$(grep -c "no such key" "$scratch/out")" != 1 ]]; then
  fail "a reason that all ranks have is given more than once"
fi
grep -qi "MPI_ABORT" "$scratch/out" && fail "MPI_Abort speaks of itself"
TAPESTRY_COMM_TIMEOUT=1 run one_does_not_come 3 1 "has heard nothing for 1 seconds" \
  "rank 0 waits in all_reduce #0 of world" "for rank 1, which does not answer"
# Ranks that do not meet inside MPI: the first that gives up says so. MPICH's mpiexec kills the others
# and may end with their code.
TAPESTRY_MPI_TIMEOUT=3 run one_starts_late 3 "1|9" "rank 0 on " "has waited for the other ranks in MPI_Init for 3 seconds"
TAPESTRY_MPI_TIMEOUT=3 run one_ends_late 3 "1|9" "rank 0 on " "has waited for the other ranks in MPI_Finalize for 3 seconds"
TAPESTRY_MPI_TIMEOUT=0 run fine 2 2 "TAPESTRY_MPI_TIMEOUT is '0'"
TAPESTRY_COMM_TIMEOUT=soon run fine 2 2 "TAPESTRY_COMM_TIMEOUT is 'soon'"
TAPESTRY_COMM_PROGRESS=sometimes run fine 2 2 "TAPESTRY_COMM_PROGRESS is 'sometimes'"
TAPESTRY_COMM_DELAY_MS=-1 run fine 2 2 "TAPESTRY_COMM_DELAY_MS is '-1'"
TAPESTRY_COMM_DELAY_MS=1 run fine 2 0

TAPESTRY_COMM_STRAGGLERS=-1 run fine 2 2 "TAPESTRY_COMM_STRAGGLERS is '-1'"
TAPESTRY_COMM_STRAGGLERS=1 run one_is_slow 3 0 "rank 2 holds up the job: the others wait"

# What goes wrong while ranks compute is found, too.
run another_size_unseen 2 1 "ranks disagree" "100000 elements" "100001 elements"
run one_throws_unseen 3 1 "rank 1: the disk is full"

# The first thing said about a rank that fails is its reason.
run one_throws 2 1
head -n 1 "$scratch/out" | grep -qF "the disk is full" || fail "the reason does not come first"

# kill -9 of one rank ends the job, which names it.
TAPESTRY_TEST_MARK="$scratch" "$mpirun" --oversubscribe -n 3 "$program" one_is_killed \
  >"$scratch/out" 2>&1 &
job=$!
victim=""
for _ in {1..100}; do
  for environment in /proc/[0-9]*/environ; do
    if grep -qzxF "TAPESTRY_TEST_MARK=$scratch" "$environment" 2>/dev/null &&
      grep -qzxE "(OMPI_COMM_WORLD_RANK|PMI_RANK)=1" "$environment" 2>/dev/null; then
      victim="${environment#/proc/}"
      victim="${victim%/environ}"
    fi
  done
  [[ -n "$victim" ]] && break
  sleep 0.1
done
sleep 1
kill -9 "$victim"
for _ in {1..100}; do
  kill -0 "$job" 2>/dev/null || break
  sleep 0.1
done
if kill -0 "$job" 2>/dev/null; then
  fail "the job goes on without rank 1"
  kill "$job"
fi
wait "$job" && fail "a job with a killed rank succeeds"
# MPICH's mpiexec names the process of any rank: it ends the others in the same way.
grep -qE "process rank 1 .*signal 9|EXIT STRING: Killed \(signal 9\)" "$scratch/out" ||
  fail "that a rank was killed is not said"
[[ "$(left_over)" == 0 ]] || fail "kill -9 leaves processes"

((failures == 0)) && echo "ok"
exit $((failures > 0))
