#!/usr/bin/env bash
# restarts_test.sh PRETRAIN_GPT PRETRAIN_GPT_SH AT_STEP.so [WORD]: runs that lose ranks and hosts, and
# that pretrain_gpt.sh --restarts brings back. With WORD only scenarios whose name has it.
#
# Hosts are of this machine: `ssh` is a script that starts there whatever mpirun sends to a host, unless
# the host has been taken down.
set -uo pipefail
program="$(realpath "$1")" launcher="$(realpath "$2")" library="$(realpath "$3")" chosen="${4:-}"
scratch="$(mktemp -d)"
cd "$scratch" || exit 1
unset ASCEND_RT_VISIBLE_DEVICES HOSTFILE SLURM_JOB_ID TAPESTRY_JOB OMPI_MCA_orte_tmpdir_base
export TAPESTRY_TEST_MARK="$scratch" BIND=none THREADS_PER_RANK=1 RESTART_DELAY=0 PROBE_SECONDS=60 \
  OMPI_MCA_btl=self,tcp OMPI_MCA_plm_rsh_agent="$scratch/ssh" OMPI_ALLOW_RUN_AS_ROOT=1 \
  OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 TMPDIR="$scratch/tmp" PRETRAIN_GPT="$scratch/program"
failures=0

# Processes that this test has started and that still run, but its own shells.
left() {
  local environment pid
  for environment in /proc/[0-9]*/environ; do
    pid="${environment//[^0-9]/}"
    if grep -qzxF "TAPESTRY_TEST_MARK=$scratch" "$environment" 2>/dev/null &&
      grep -qxE "mpirun|orterun|orted|pretrain_gpt" "/proc/$pid/comm" 2>/dev/null; then
      echo "$pid"
    fi
  done
}
clean_up() {
  local pid
  for pid in $(left); do
    kill -9 "$pid" 2>/dev/null
  done
  rm -rf "$scratch"
}
trap clean_up EXIT

fail() {
  echo "FAILED: $scenario: $*" >&2
  tail -n 40 "$scratch/$scenario.txt" | sed 's/^/    /' >&2
  sed 's/^/    /' "$scratch/$scenario/output/restarts.jsonl" >&2
  failures=$((failures + 1))
}
says() { grep -qF -- "$1" "$scratch/$scenario.txt" || fail "does not say: $1"; }
until_true() { # for a minute at most
  for _ in {1..600}; do
    "$@" && return 0
    sleep 0.1
  done
  return 1
}

# ---- What stands in for hosts and for their programs.

cat >ssh <<'SH'
#!/usr/bin/env bash
# ssh [OPTION]... HOST COMMAND...
while [[ "$1" == -* ]]; do shift; done
host="$1"
shift
if [[ -e "$TAPESTRY_TEST_MARK/down/$host" ]]; then
  mkdir "$TAPESTRY_TEST_MARK/down/asked" 2>/dev/null || exit 255
  exec sleep 600 # the first time it is as if packets were lost
fi
# A host has a /tmp of its own: daemons that share it remove each other's files.
export TAPESTRY_TEST_HOST="$host" TMPDIR="$TAPESTRY_TEST_MARK/tmp/$host"
mkdir -p "$TMPDIR"
exec bash -c "$*"
SH
# Leaves its number where AT_STEP's programs find it, and what its scenario wants before the first step.
cat >program <<SH
#!/usr/bin/env bash
rank="\${OMPI_COMM_WORLD_RANK:-\${PMI_RANK:-}}"
if [[ -n "\$rank" ]]; then
  echo \$\$ >"pid_\$rank"
  [[ ! -x ./before ]] || ./before "\$rank" || exit
  [[ ! -x ./at ]] || export LD_PRELOAD="$library" AT_STEP="\$PWD/at"
fi
exec -a pretrain_gpt "$program" "\$@"
SH
chmod +x ssh program
mkdir down tmp

# ---- The run: 12 steps of 4 samples, with dropout.

who=("the king" "a servant" "the prophet" "his brother") did=("went up to" "looked upon" "left")
for ((i = 0; i < 300; ++i)); do
  echo "And ${who[i * 7 % 4]} ${did[i * 5 % 3]} the city, and $((i * 37 % 101)) were there."
done >text.txt
cat >run.yaml <<YAML
training_config:
  training_iters: 12
  seed: 11
  save_interval: 4
  exact: True
  log_interval: 1
dataset_config:
  text: $scratch/text.txt
  dataset_dir: $scratch/dataset
  tokenizer_type: byte
  batch_size: 1
  split: "1"
model_config:
  vocab_size: 264
  num_layers: 2
  hidden_size: 32
  ffn_hidden_size: 64
  num_attention_heads: 2
  seq_length: 16
  hidden_dropout: 0.1
  attention_dropout: 0.1
optimizer_config:
  learning_rate: 1e-3
YAML

# scenario NAME: 1 if it was not asked for.
scenario() {
  scenario="$1"
  [[ "$1" == *"$chosen"* ]] || return 1
  mkdir "$scratch/$1"
  cd "$scratch/$1" || exit 1
}
# take_down HOST SIGNAL: a host is gone, with all that runs on it.
take_down() {
  local process
  touch "$TAPESTRY_TEST_MARK/down/$1"
  for process in /proc/[0-9]*; do
    if grep -qzxF "TAPESTRY_TEST_HOST=$1" "$process/environ" 2>/dev/null &&
      grep -qzxF "TAPESTRY_TEST_MARK=$TAPESTRY_TEST_MARK" "$process/environ"; then
      kill "$2" "${process#/proc/}"
    fi
  done
}
# script at <<SCRIPT, script before <<SCRIPT: what is done at each step, with its number in $1; before a rank
# starts, with the rank in $1. `once WORD` succeeds the first time.
script() {
  {
    printf '%s\n' '#!/usr/bin/env bash' 'once() { mkdir "once_$1" 2>/dev/null; }' \
      'lose_rank() { kill -9 "$(cat "pid_$1")"; sleep 60; }' "$(declare -f take_down)"
    cat
  } >"$1"
  chmod +x "$1"
}
launch() { # RESTARTS OPTION...
  local restarts="$1"
  shift
  code=0
  "$launcher" --restarts "$restarts" "$scratch/run.yaml" "$@" >"$scratch/$scenario.txt" 2>&1 || code=$?
}
ends_with() { [[ $code == "$1" ]] || fail "ends with $code, not $1"; }
starts() { grep -c '"event":"start"' output/restarts.jsonl; }
has_starts() { [[ "$(starts)" == "$1" ]] || fail "$(starts) starts, not $1"; }
steps_in() { sed -n 's/^{"step":\([0-9]*\),.*/\1/p' "$1" | tr '\n' ' '; }
# The same bits as the run that nobody has disturbed, and each step once.
is_the_run() {
  [[ "$(steps_in output/metrics.jsonl)" == "$(seq -s ' ' 12) " ]] || fail "steps $(steps_in output/metrics.jsonl)"
  cmp output/hashes.jsonl "$scratch/whole/output/hashes.jsonl" || fail "other hashes than the unbroken run"
}

# ---- Scenarios.

scenario=whole chosen_before="$chosen" chosen=""
scenario whole
chosen="$chosen_before"
RANKS=4 launch 3
ends_with 0
has_starts 1
grep -q " starts:" "$scratch/whole.txt" && fail "a run that was started once has a table of starts"
[[ "$(steps_in output/metrics.jsonl)" == "$(seq -s ' ' 12) " ]] || fail "the unbroken run has no 12 steps"

# A rank is lost twice: each time from the newest checkpoint. The lock that the first one leaves is as if
# its machine were gone.
if scenario rank; then
  script at <<'SH'
if [[ $1 == 6 ]] && once six; then
  sed 's/^host: .*/host: far.away/; s/^boot_id: .*/boot_id: another/' output/run.lock >lock
  cat lock >output/run.lock
  lose_rank 1
fi
[[ $1 != 10 ]] || ! once ten || lose_rank 3
SH
  RANKS=4 launch 5
  ends_with 0
  has_starts 3
  is_the_run
  says "on host far.away, since"
  says "rank 1 on "
  says "was ended by signal 9 (Killed)"
  says "4 steps were computed twice, the last one is 12"
fi

# Before the first checkpoint it begins anew.
if scenario beginning; then
  script at <<'SH'
[[ $1 != 3 ]] || ! once three || lose_rank 0
SH
  RANKS=2 launch 1 --set dataset_config.batch_size=2
  ends_with 0
  has_starts 2
  is_the_run
fi

# A crash that repeats at the same step, and one that repeats before the first step.
if scenario repeats; then
  script at <<'SH'
[[ $1 != 7 ]] || lose_rank 1
SH
  RANKS=2 launch 9 --set dataset_config.batch_size=2
  ends_with 137
  has_starts 2
  says "this is the second time in a row that it ends after step 7; before: rank 1 on "
fi
if scenario never_starts; then
  script before <<'SH'
[[ $1 != 1 ]] || { echo "no such device" >&2; exit 1; }
SH
  # A wrapper's `|| exit` passes on the code.
  RANKS=2 launch 9 --set dataset_config.batch_size=2
  ends_with 1
  has_starts 2
  says "before its first step"
  says "no such device"
fi

# One that gets further each time goes on until the restarts are used up.
if scenario used_up; then
  script at <<'SH'
! once "$1" || [[ $1 -lt 5 ]] || lose_rank 1
SH
  RANKS=2 launch 2 --set dataset_config.batch_size=2 --set training_config.save_interval=1
  ends_with 137
  has_starts 3
  says "it was started again 2 times already"
fi

# Bad input, before ranks start and after.
if scenario input; then
  RANKS=2 launch 9 --set training_config.sede=1
  ends_with 2
  [[ ! -e output ]] || fail "bad input leaves an output folder"
  cp -r "$scratch/whole/output" .
  rm output/restarts.jsonl
  RANKS=2 launch 9 --set dataset_config.batch_size=2
  ends_with 2
  has_starts 1
  says "holds a run already"
fi

# A host is lost: the layout is another one, the bits are the same. The probe finds it, however long
# the host would keep somebody waiting.
if scenario host; then
  printf '%s\n' 'hosta slots=2' 'hostb slots=2' >hosts
  script at <<'SH'
if [[ $1 == 6 ]] && once six; then
  take_down hostb -KILL
  sleep 60
fi
SH
  HOSTFILE=hosts PROBE_SECONDS=10 launch 5
  rm -r "$scratch"/down/*
  ends_with 0
  has_starts 2
  is_the_run
  says "no answer from hostb any more"
  says "2 of 4 ranks, without hostb"
  grep -q '"start":2,.*"ranks":2,"left_out":\["hostb"\]' output/restarts.jsonl || fail "the record has no host"
fi

# A host that stops answering, without a word: mpirun would wait for it.
if scenario silent; then
  printf '%s\n' 'hosta slots=1' 'hostb slots=1' >hosts
  script at <<'SH'
if [[ $1 == 6 ]] && once six; then
  mkdir "$TAPESTRY_TEST_MARK/down/asked"
  take_down hostb -STOP
fi
SH
  HOSTFILE=hosts TAPESTRY_COMM_TIMEOUT=5 END_SECONDS=3 launch 5 --set dataset_config.batch_size=2
  for pid in $(left); do
    kill -9 "$pid"
  done
  rm -r "$scratch"/down/*
  ends_with 0
  has_starts 2
  is_the_run
  says "kills it"
  says "no answer from hostb any more (rank 0 has heard nothing for 5 seconds"
fi

# None of the hosts is left: it waits for one until the restarts are used up.
if scenario no_host; then
  printf '%s\n' 'hosta slots=1' 'hostb slots=1' >hosts
  script at <<'SH'
if [[ $1 == 6 ]]; then
  mkdir "$TAPESTRY_TEST_MARK/down/asked"
  touch "$TAPESTRY_TEST_MARK/down/hosta"
  take_down hostb -KILL
  lose_rank 0
fi
SH
  HOSTFILE=hosts launch 2 --set dataset_config.batch_size=2
  rm -r "$scratch"/down/*
  [[ $code != 0 ]] || fail "ends with 0"
  has_starts 3
  says "no host of hosts answers; tries again in 0 s"
  says "it was started again 2 times already"
fi

# An earlier run in the folder: --overwrite holds for the first start, and for that alone.
if scenario overwrite; then
  cp -r "$scratch/whole/output" .
  rm output/restarts.jsonl
  script before <<'SH'
[[ $1 != 1 ]] || ! once start || exit 1
SH
  script at <<'SH'
[[ $1 != 6 ]] || ! once six || lose_rank 1
SH
  RANKS=2 launch 5 --set dataset_config.batch_size=2 --overwrite
  ends_with 0
  has_starts 3
  is_the_run
  [[ "$(ls output/old)" == run_1 ]] || fail "old/ has $(ls output/old)"
  [[ -e output/old/run_1/checkpoint/step_00000012 ]] || fail "the earlier run is gone"
fi

# A new run from given weights is not taken for one that goes on with them.
if scenario weights; then
  script at <<'SH'
[[ $1 != 3 ]] || ! once three || lose_rank 1
[[ $1 != 6 ]] || ! once six || lose_rank 1
SH
  RANKS=2 launch 5 --set dataset_config.batch_size=2 \
    --set training_config.load_checkpoint="$scratch/whole/output/checkpoint/step_00000004"
  ends_with 0
  has_starts 3
  [[ "$(steps_in output/metrics.jsonl)" == "$(seq -s ' ' 12) " ]] || fail "steps $(steps_in output/metrics.jsonl)"
  [[ "$(steps_in output/old/run_1/metrics.jsonl)" == "1 2 3 " ]] || fail "the broken start is gone"
  hashes_of() { sed -n '2,4p' "$1"; }
  cmp <(hashes_of output/hashes.jsonl) <(hashes_of output/old/run_1/hashes.jsonl) ||
    fail "the steps of the broken start are not computed again as they were"
fi

# Which samples come, their order and the dropout of each do not depend on how many ranks share a
# batch: examples with answers of many lengths, and a blend.
if scenario data; then
  for ((i = 0; i < 60; ++i)); do
    printf '{"prompt": "%s %d", "completion": "%0*d"}\n' "${who[i % 4]}" "$i" $((1 + i * 5 % 7)) "$i"
  done >examples.jsonl
  prefix="$(ls "$scratch"/dataset/*.idx)"
  for kind in idx bin; do
    cp "${prefix%.idx}.$kind" "other.$kind"
  done
  for data in sft_data_path=examples.jsonl "data_path=[0.7, ${prefix%.idx}, 0.3, other]"; do
    for ranks in 4 2; do
      RANKS=$ranks "$launcher" "$scratch/run.yaml" --set training_config.training_iters=3 \
        --set dataset_config.batch_size=$((4 / ranks)) --set "training_config.output_dir=ranks_$ranks" \
        --set dataset_config.text=null --set "dataset_config.$data" --overwrite \
        >"$scratch/$scenario.txt" 2>&1 || fail "$data on $ranks ranks"
    done
    cmp ranks_{4,2}/hashes.jsonl || fail "$data: other hashes on 2 ranks than on 4"
  done
fi

# A newest checkpoint that is not what was written: the one before it.
if scenario torn; then
  script at <<'SH'
if [[ $1 == 10 ]] && once ten; then
  printf x | dd of=output/checkpoint/step_00000008/model.safetensors bs=1 seek=5000 conv=notrunc 2>/dev/null
  lose_rank 1
fi
SH
  RANKS=2 launch 5 --set dataset_config.batch_size=2 --set training_config.log_format=json
  ends_with 0
  has_starts 3
  is_the_run
  [[ -e output/old/run_1/checkpoint/step_00000008 ]] || fail "the torn checkpoint is gone"
fi

# Ctrl-C between two starts ends it at once.
if scenario interrupt; then
  script at <<'SH'
[[ $1 != 6 ]] || lose_rank 1
SH
  RESTART_DELAY=9999 RANKS=2 setsid "$launcher" --restarts 5 "$scratch/run.yaml" \
    --set dataset_config.batch_size=2 >"$scratch/$scenario.txt" 2>&1 &
  job=$!
  until_true grep -qF "starts again in 9999 s" "$scratch/$scenario.txt" || fail "it does not wait"
  kill -TERM "$job"
  wait "$job"
  code=$?
  ends_with 143
  has_starts 1
fi

# Batch systems: what is to be done after each start of a job, on files that a run has left.
if scenario commands; then
  restarts="$(dirname "$launcher")/pretrain_gpt_restarts.sh"
  mkdir -p output/log/rank_0
  step() { printf '{"step":%d,"epoch":0,"loss":2}\n' "$1" >>output/metrics.jsonl; }
  at_end() { # CODE OF THE COMMAND, CODE OF THE RUN, OPTION...
    local wanted="$1"
    shift
    code=0
    SLURM_JOB_ID=7 "$restarts" end output "$@" >>"$scratch/$scenario.txt" 2>&1 || code=$?
    ends_with "$wanted"
  }
  begin() { SLURM_JOB_ID=7 "$restarts" begin output >>"$scratch/$scenario.txt" 2>&1 || fail "begin"; }
  begin
  for number in 1 2 3; do step $number; done
  at_end 0 137
  begin # preempted: nobody sees its end, and it does not count
  begin
  for number in 2 3 4; do step $number; done
  at_end 0 1 --restarts 2
  begin
  step 4
  at_end 3 1 --restarts 9
  says "this is the second time in a row that it ends after step 4"
  begin
  step 5
  at_end 3 1 --restarts 2
  says "it was started again 2 times already"
  begin
  at_end 3 2
  begin
  echo "2026-01-01 00:00:00.000 info stopped on request after 5 steps" >>output/log/rank_0/info.log
  at_end 3 0
  says "start 7: stopped on request, before its first step"
  grep -qF '"cause":"unseen"' output/restarts.jsonl || fail "the unseen end is not in the record"
  code=0
  "$restarts" begin output 2>>"$scratch/$scenario.txt" || code=$?
  ends_with 2
  says "neither SLURM_JOB_ID nor TAPESTRY_JOB"
fi

((failures == 0)) && echo "ok"
exit $((failures > 0))
