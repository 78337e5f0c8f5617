#!/usr/bin/env bash
# launcher_test.sh PRETRAIN_GPT PRETRAIN_GPT_SH: runs of two ranks by the launcher.
set -uo pipefail
export PRETRAIN_GPT="$1"
launcher="$2"
scratch="$(mktemp -d)"
cd "$scratch" || exit 1
export TAPESTRY_TEST_MARK="$scratch" BIND=none THREADS_PER_RANK=1 RANKS=2
unset ASCEND_RT_VISIBLE_DEVICES HOSTFILE
failures=0
mpi=openmpi
[[ "$(ldd "$PRETRAIN_GPT")" != *libmpich* ]] || mpi=mpich

fail() {
  echo "FAILED: $*" >&2
  tail -n 30 "$scratch"/*.txt | sed 's/^/    /' >&2
  failures=$((failures + 1))
}

# Ranks that this test has started and that still run.
ranks_left() {
  local environment
  for environment in /proc/[0-9]*/environ; do
    if grep -qzxF "TAPESTRY_TEST_MARK=$scratch" "$environment" 2>/dev/null &&
      [[ "$(readlink "${environment%environ}exe")" == "$(readlink -f "$PRETRAIN_GPT")" ]]; then
      local pid="${environment#/proc/}"
      echo "${pid%/environ}"
    fi
  done
}
mpirun_runs() {
  local environment
  for environment in /proc/[0-9]*/environ; do
    if grep -qzxF "TAPESTRY_TEST_MARK=$scratch" "$environment" 2>/dev/null &&
      grep -qxE "mpirun(\.openmpi|\.mpich)?|orterun|mpiexec\.hydra" "${environment%environ}comm" 2>/dev/null; then
      return 0
    fi
  done
  return 1
}
clean_up() {
  local pid
  for pid in $(ranks_left); do
    kill -9 "$pid" 2>/dev/null
  done
  rm -rf "$scratch"
}
trap clean_up EXIT

# until_true COMMAND...: waits for it, for a minute at most.
until_true() {
  for _ in {1..600}; do
    "$@" && return 0
    sleep 0.1
  done
  return 1
}
in_log() { grep -qsF "$2" "$1"; }
gone() { ! kill -0 "$1" 2>/dev/null; }
no_ranks() { [[ -z "$(ranks_left)" ]]; }

small=(--set dataset_config.tokenizer_type=byte --set model_config.num_layers=1
  --set model_config.seq_length=32 --set dataset_config.batch_size=2
  --set training_config.save_interval=1000000)
preset=pretrain_gpt_tiny.yaml

# What is wrong with the command line is said before anything starts.
"$launcher" nothing.yaml >bad.txt 2>&1 && fail "a configuration that is not there is accepted"
grep -qF "nothing.yaml: no such file" bad.txt || fail "a missing configuration is not named"
RANKS=two "$launcher" $preset >bad.txt 2>&1 && fail "RANKS=two is accepted"
grep -qF "RANKS is 'two'" bad.txt || fail "RANKS is not named"
HOSTFILE=nohosts "$launcher" $preset >bad.txt 2>&1 && fail "a missing host file is accepted"
"$launcher" --dry_run >default.txt 2>&1
grep -qF "pretrain_gpt_tiny.yaml" default.txt ||
  in_log default.txt "dp 2 | pp 1 | tp 1 | sp False | vpp None" ||
  fail "the default configuration neither fits nor names the tiny preset"
grep -qF "there is no pretrain_gpt.yaml in this folder" default.txt ||
  fail "the default configuration is taken without a word"

# Without RANKS as many as devices are listed, as slots are, else one; the configuration lies here.
mkdir usual
printf '%s\n' 'host1 slots=2' '# none' 'host2' >usual/hosts
cp "$(dirname "$launcher")/$preset" usual/pretrain_gpt.yaml
dry() { # FILE VARIABLE=VALUE...
  local file="$1"
  shift
  (cd usual && unset RANKS && env "$@" "$launcher" "${small[@]}" --dry_run) >"$file" 2>&1
}
dry one.txt || fail "one rank"
in_log one.txt "dp 1 | pp 1 | tp 1" || fail "there is not one rank without RANKS"
grep -qF "there is no pretrain_gpt.yaml" one.txt && fail "the configuration of the folder is not seen"
dry two.txt ASCEND_RT_VISIBLE_DEVICES=4,5 || fail "ranks of devices"
in_log two.txt "dp 2 | pp 1 | tp 1" || fail "there is not a rank for each device"
dry one.txt ASCEND_RT_VISIBLE_DEVICES=0,1,2 RANKS=1 || fail "RANKS beside devices"
in_log one.txt "dp 1 | pp 1 | tp 1" || fail "RANKS does not go before devices"
dry bad.txt ASCEND_RT_VISIBLE_DEVICES=all && fail "a list of no devices is accepted"
grep -qF "ASCEND_RT_VISIBLE_DEVICES is 'all', expected numbers" bad.txt || fail "the list is not named"
sed -n '/^slots_of() {/,/^}/p' "$launcher" >slots.sh
(. ./slots.sh && [[ "$(slots_of usual/hosts)" == 3 ]]) || fail "slots of a host file"

# All ranks find the same fault: it is said once, by nobody else, and the exit code is its own.
printf 'training_config:\n  sede: 1\nmodel_config:\n' >wrong.yaml
code=0
"$launcher" wrong.yaml >wrong.out 2>wrong.txt || code=$?
[[ $code == 2 ]] || fail "a wrong configuration gives $code"
[[ "$(grep -c "unknown key 'sede'" wrong.txt)" == 1 ]] || fail "the fault is not said once"
grep -qE "^-----|MPI|mpirun|exit code" wrong.txt && fail "Open MPI speaks around the fault"

# On a terminal a bar that fits, also through mpirun; elsewhere no escapes.
mkdir terminal
(cd terminal && TERM=xterm script -qec "stty cols 60; '$launcher' $preset ${small[*]} \
  --set training_config.training_iters=12" shown.txt) >/dev/null 2>&1 </dev/null ||
  fail "a run on a terminal"
cp terminal/shown.txt shown.txt
bars="$(tr '\r' '\n' <terminal/shown.txt | grep -a ' left$' | sed 's/^\x1b\[K//')"
[[ "$bars" == *"12/12  loss "* ]] || fail "no bar under the launcher"
(("$(wc -L <<<"$bars")" < 60)) || fail "a bar is as wide as the terminal, or wider"
grep -qP "\x1b" terminal/output/log/rank_0/info.log && fail "escapes in a log"

# Two ranks, two logs, one file of metrics; the same run again gives the same bits.
for run in first second; do
  mkdir "$run"
  (cd "$run" && "$launcher" $preset "${small[@]}" --set training_config.training_iters=3) \
    >"$run.txt" 2>&1 || fail "the $run run"
  for rank in 0 1; do
    grep -qP "\x1b" "$run.txt" && fail "escapes where there is no terminal"
    in_log "$run/output/log/rank_$rank/info.log" "dp 2 | pp 1 | tp 1 | sp False | vpp None" ||
      fail "rank $rank of the $run run has no log"
  done
  [[ "$(wc -l <"$run/output/metrics.jsonl")" == 3 ]] || fail "metrics of the $run run"
  [[ -e "$run/output/run.lock" ]] && fail "the $run run leaves its lock"
done
cmp -s {first,second}/output/checkpoint/step_00000003/model.safetensors ||
  fail "the same run twice gives different weights"

# A run that is going on is left alone: by one in another folder, and by one that is refused in its
# own, in one voice and with the exit code of bad input. --replace ends it in good order.
mkdir earlier
(cd earlier && exec "$launcher" $preset "${small[@]}" --set training_config.training_iters=100000) \
  >earlier.txt 2>&1 &
earlier=$!
until_true in_log earlier/output/log/rank_1/info.log "memory: parameters" || fail "the earlier run starts"
(cd earlier && "$launcher" $preset "${small[@]}" --set training_config.training_iters=2 \
  --set training_config.output_dir=./output2) >beside.txt 2>&1 || fail "a run in another folder"
(cd earlier && "$launcher" $preset "${small[@]}" --set training_config.training_iters=2) \
  >refused.txt 2>&1
[[ $? == 2 ]] || fail "a run in a folder that is in use does not end with 2"
[[ "$(grep -c "is in use by process" refused.txt)" == 1 ]] || fail "the refusal is not said once"
gone "$earlier" && fail "a run ended another one without being told to"
(cd earlier && "$launcher" $preset "${small[@]}" --set training_config.training_iters=2 --replace) \
  >later.txt 2>&1 || fail "the run that replaces another"
grep -qF "waiting for the end of process" later.txt || fail "the replaced run is not mentioned"
until_true gone "$earlier" || fail "the replaced run goes on"
wait "$earlier" || fail "the replaced run fails"
in_log earlier/output/log/rank_0/info.log "stopped on request after" ||
  fail "the replaced run was not ended in good order"
[[ -n "$(ls earlier/output/old/run_1/checkpoint)" ]] || fail "the replaced run has not saved"
[[ "$(wc -l <earlier/output/metrics.jsonl)" == 2 ]] || fail "metrics of the run that replaces"

# The folder of a finished run: all ranks refuse, or all go on.
(cd earlier && "$launcher" $preset "${small[@]}" --set training_config.training_iters=2) \
  >again.txt 2>&1
[[ $? == 2 ]] || fail "a second run of a folder does not end with 2"
[[ "$(grep -c "holds a run already" again.txt)" == 1 ]] || fail "the second run is not refused once"
(cd earlier && "$launcher" $preset "${small[@]}" --set training_config.training_iters=1 --overwrite) \
  >again.txt 2>&1 || fail "a run that overwrites"
[[ "$(wc -l <earlier/output/old/run_2/metrics.jsonl)" == 2 ]] || fail "what was overwritten is gone"

# A signal to the launcher ends the run in good order.
mkdir signal
(cd signal && exec "$launcher" $preset "${small[@]}" --set training_config.training_iters=100000) \
  >signal.txt 2>&1 &
job=$!
until_true in_log signal/output/log/rank_1/info.log "memory: parameters" || fail "the run to be ended starts"
kill -TERM "$job"
wait "$job" || fail "a run that is asked to stop fails"
in_log signal/output/log/rank_1/info.log "stopped on request after" || fail "rank 1 did not stop"

# A second one ends it at once, with the signal's exit code. Its steps take a while.
mkdir twice
(cd twice && exec "$launcher" $preset "${small[@]}" --set training_config.training_iters=50 \
  --set dataset_config.batch_size=1500) >twice.txt 2>&1 &
job=$!
until_true in_log twice/output/log/rank_1/info.log "memory: parameters" || fail "the run to be ended twice starts"
kill -TERM "$job"
sleep 0.5
kill -TERM "$job"
wait "$job"
[[ $? == 143 ]] || fail "a run that is ended twice does not end with 143"
grep -q mpirun twice.txt && fail "mpirun speaks of a run that is ended twice"
# Which MPI a program has, and so whose mpirun, is found also where those that are asked have more to say
# than what tells: a pipe that is closed early would be a failure, at times.
mkdir talkative
printf '#!/bin/sh\necho libmpich.so.12\nyes | head -c 300000\n' >talkative/ldd
printf '#!/bin/sh\necho HYDRA\nyes | head -c 300000\n' >talkative/mpirun.mpich
chmod +x talkative/*
# shellcheck disable=SC2030,SC2034  # what the function reads
found="$(set -euo pipefail
  program=any PATH="$PWD/talkative:$PATH"
  eval "$(sed -n '/^find_mpirun() {/,/^}/p' "$launcher")"
  find_mpirun
  echo "$mpi $mpirun")"
[[ "$found" == "mpich mpirun.mpich" ]] || fail "the MPI of a program is not found: '$found'"
until_true no_ranks || fail "ranks are left of the run that was ended twice"

# One that comes while the ranks start is not lost, and not obeyed without a word. kill -9 of the
# launcher leaves nobody behind either.
for moment in 0 0.1 0.3; do
  for signal in TERM KILL; do
    folder="start_${signal}_$moment"
    mkdir "$folder"
    cp -r first/dataset "$folder"
    (cd "$folder" && exec "$launcher" $preset "${small[@]}" \
      --set training_config.training_iters=100000) >"$folder.txt" 2>&1 &
    job=$!
    until_true mpirun_runs || fail "$folder does not start"
    sleep "$moment"
    kill "-$signal" "$job"
    wait "$job"
    code=$?
    [[ $signal == KILL || $code == 0 || $code == 143 ]] || fail "$folder ends with $code"
    [[ $signal == KILL || -s "$folder.txt" ]] || fail "$folder ends without a word"
    until_true no_ranks || fail "ranks are left: $folder"
  done
done

# So does, in good order, the end of the terminal or of who reads the output.
for ending in hangup pipe; do
  mkdir "$ending"
  cp -r first/dataset "$ending"
  if [[ $ending == hangup ]]; then
    (cd hangup && exec "$launcher" $preset "${small[@]}" --set training_config.training_iters=100000) \
      >hangup.txt 2>&1 &
    job=$!
    until_true in_log hangup/output/log/rank_1/info.log "memory: parameters" || fail "the run to be hung up starts"
    kill -HUP "$job"
    wait "$job" || fail "a run whose terminal goes fails"
  else
    (cd pipe && "$launcher" $preset "${small[@]}" --set training_config.training_iters=100000) \
      2>pipe.txt | {
        head -n 1 >head.txt
        until_true in_log pipe/output/log/rank_1/info.log "memory: parameters"  # not while it prepares
      }
    [[ ${PIPESTATUS[0]} == 0 ]] || fail "a run whose reader goes fails"
  fi
  in_log "$ending/output/log/rank_1/info.log" "stopped on request after" || fail "no good order: $ending"
  [[ -n "$(ls "$ending/output/checkpoint")" ]] || fail "nothing is saved: $ending"
  grep -q mpirun "$ending.txt" && fail "mpirun speaks: $ending"
done

# What needs no ranks, what needs no configuration, and one's own words for the log.
"$launcher" --version >version.txt 2>&1 || fail "--version"
grep -qF "BLAS: " version.txt || fail "--version prints nothing"
"$launcher" --help log_interval >topic.txt 2>&1 || fail "--help TOPIC"
grep -qF "Steps between log lines" topic.txt || fail "--help TOPIC prints something else"
"$launcher" --help >usage.txt 2>&1 || fail "--help"
grep -qF "THREADS_PER_RANK" usage.txt || fail "--help does not print the launcher's usage"
"$launcher" --plot first/output >plot.txt 2>&1 || fail "--plot"
grep -q "^training  " plot.txt || fail "--plot shows no training loss"
(cd first && "$launcher" --evaluate output) >evaluate.txt 2>&1 || fail "--evaluate"
grep -qF "evaluating output/checkpoint/step_00000003" evaluate.txt || fail "--evaluate takes another one"
mkdir words
(cd words && "$launcher" $preset "${small[@]}" --set training_config.training_iters=1 \
  --run_cmd "my own words") >words.txt 2>&1 || fail "--run_cmd"
grep -qF "run_cmd: my own words" words.txt || fail "--run_cmd is not recorded"

# kill -9 of one rank ends the job, which names it.
mkdir killed
(cd killed && exec "$launcher" $preset "${small[@]}" --set training_config.training_iters=100000) \
  >killed.txt 2>&1 &
job=$!
until_true in_log killed/output/log/rank_1/info.log "memory: parameters" || fail "the run to be killed starts"
for pid in $(ranks_left); do
  if grep -qzxE "(OMPI_COMM_WORLD_RANK|PMI_RANK)=1" "/proc/$pid/environ"; then
    kill -9 "$pid"
  fi
done
wait "$job" && fail "a run with a killed rank succeeds"
named="process rank 1 .*signal 9"
[[ $mpi == openmpi ]] || named="KILLED BY SIGNAL: 9|signal 9"  # which rank it was MPICH does not say
grep -qE "$named" killed.txt || fail "the killed rank is not named"
until_true no_ranks || fail "ranks are left"

((failures == 0)) && echo "ok"
exit $((failures > 0))
