#!/usr/bin/env bash
# Makes every call of a short training run to the file system fail or lie, one at a time, goes on with
# what is there, and compares with a run that nobody has disturbed. The last line is the verdict,
# "disk_faults: passed: ..." or "disk_faults: FAILED: ..."; the exit code is 0 or 1, and 2 for wrong
# arguments.
#
#   scripts/disk_faults.sh                      every fault: some thousands, an hour or two
#   scripts/disk_faults.sh --sample 40          so many of them
#   scripts/disk_faults.sh --only 'write half'  those whose name matches
#
#   --run KIND      plain (as below), ckpt (MindSpore's format), shards (a checkpoint of several
#                   files), best (evaluations, the best checkpoint beside the newest one), async (saves
#                   in the background) or ranks (two processes share the work, under mpirun)
#   --sample N      so many faults, chosen by the seed (0: all)
#   --seed N        of the choice (1)
#   --only PATTERN  faults whose name ("PHASE CALL FAULT once|stays N", or "file NAME DAMAGE") matches
#                   this extended regular expression
#   --jobs N        so many at a time (2)
#   --build DIR     folder with the built programs (build/release)
#   --programs DIR  folder with pretrain_gpt (BUILD/examples/gpt)
#   --library FILE  faulty_disk.so (BUILD/tests/libfaulty_disk.so)
#   --work DIR      folder for the runs, kept; else a temporary one, kept only on failure
#
# The run has 4 steps and saves after 2 and 4, all below one folder: configuration, text, tokens and
# output. "first" is a start from nothing, "second" one that goes on after step 2. A fault ends well if
#   - the run ends with exit code 0, and the checkpoint of step 4 has the undisturbed run's bits, or it
#     ends with another one and names the file, and
#   - the same command without the fault, for 6 steps, gives the undisturbed run's weights, states and
#     metrics; or, where the disturbed run has not ended with 0, refuses and names the file.
# Each file of a checkpoint is also flipped in a bit, cut, emptied and removed: going on refuses by its name.
set -uo pipefail
self="${BASH_SOURCE[0]}"
# shellcheck source-path=SCRIPTDIR source=mpirun_of.sh
source "$(dirname "$self")/mpirun_of.sh"
usage() { sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$self"; }

wrong() {
  echo "disk_faults.sh: $*; --help shows the options" >&2
  exit 2
}

# What a run has learned: metrics without times and memory.
metrics_of() {
  sed -E 's/"[a-z_]*(time|_ms|second|memory|bytes|mfu|flops|per_s)[a-z_0-9]*": ?[^,}]*[,}]?//g' "$1/output/metrics.jsonl"
}
same_checkpoint() { # A B STEP
  local ours="$1/output/checkpoint/step_0000000$3" theirs="$2/output/checkpoint/step_0000000$3" file
  for file in "$theirs"/*.safetensors "$theirs"/*.index.json "$theirs"/*.ckpt; do
    [[ ! -e "$file" ]] || cmp -s "$ours/$(basename "$file")" "$file" || return 1
  done
}
# The best checkpoint is the one that it is, and whole.
same_best() { # A B
  [[ -f "$2/output/checkpoint/best.json" ]] || return 0
  cmp -s "$1/output/checkpoint/best.json" "$2/output/checkpoint/best.json" || return 1
  local name file
  name="$(sed -nE 's/.*"(step_[0-9]+)".*/\1/p' "$2/output/checkpoint/best.json" | head -n 1)"
  for file in "$2/output/checkpoint/$name"/*.safetensors; do
    cmp -s "$1/output/checkpoint/$name/$(basename "$file")" "$file" || return 1
  done
}
# So many steps; what else is in the environment as arguments NAME=VALUE.
train() { # STEPS [NAME=VALUE...]
  local command=("$PRETRAIN" --config_path run.yaml --set training_config.training_iters="$1") name
  shift
  if [[ "$RUN" == ranks ]]; then
    mpirun_of "$PRETRAIN"
    timeout 120 "${mpirun[@]}" -n 2 env "$@" "${command[@]}"
  else
    env "$@" timeout 60 "${command[@]}"
  fi
}
# Whether a text names a path below the folder, or this file.
names_file() { # TEXT_FILE HIT
  local name
  name="$(basename "$2")"
  name="$(sed -E 's/^\.(.*)\.tmp(-[0-9]+)*$/\1/; s/^\.//' <<<"$name")"
  grep -qF -e "$name" "$1" || grep -qE '(output|data|run\.yaml|text\.txt)[/ :,;.]' "$1"
}

# One fault; a line "VERDICT NAME: why".
one() { # WORK NUMBER NAME...
  local work="$1" number="$2" name="${*:3}" code=0 again=0 hit="" phase="$3"
  local dir="$work/case_$number"
  mkdir -p "$dir"
  say() {
    echo "$1 $name${2:+: $2}"
    if [[ "$1" == LOST ]]; then
      mkdir -p "$work/lost"
      rm -rf "$work/lost/$number"
      mv "$dir" "$work/lost/$number"
    else
      rm -rf "$dir"
    fi
  }
  if [[ "$phase" == file ]]; then
    cp -r "$work/four" "$dir/run"
    local path="$dir/run/output/checkpoint/step_00000004/$4" size
    size="$(stat -c %s "$path")"
    case "$5" in
      flip*)
        local at=$((size * ${5#flip} / 100)) byte
        byte="$(od -An -tu1 -j "$at" -N 1 "$path")"
        printf '%b' "\\x$(printf %02x $((byte ^ 1)))" | dd of="$path" bs=1 seek="$at" conv=notrunc status=none
        ;;
      cut) truncate -s $((size / 2)) "$path" ;;
      empty) truncate -s 0 "$path" ;;
      remove) rm "$path" ;;
    esac
    (cd "$dir/run" && train 6) >"$dir/again" 2>&1 || again=$?
    if ((again == 0)) && ! same_checkpoint "$dir/run" "$work/six" 6; then
      say LOST "goes on with other bits"
    elif ((again == 0)); then
      say same
    elif ((again > 2)) || ! grep -qF -e "$4" "$dir/again"; then
      say LOST "exit code $again without the file's name"
    else
      say named
    fi
    return
  fi
  local call="$4" fault="$5" stays="$6" n="$7"
  cp -r "$work/begin_$phase" "$dir/run"
  [[ "$stays" == stays ]] || stays=""
  (cd "$dir/run" && train 4 FAULTY_DISK="$dir/run" FAULTY_DISK_CALL="$call" FAULTY_DISK_FAULT="$fault" \
    FAULTY_DISK_NUMBER="$n" FAULTY_DISK_STAYS="$stays" FAULTY_DISK_LOG="$dir/log" LD_PRELOAD="$LIBRARY") >"$dir/said" 2>&1 || code=$?
  hit="$(sed -n "s/^hit $call //p" "$dir/log" 2>/dev/null | head -n 1)"
  (cd "$dir/run" && train 6) >"$dir/again" 2>&1 || again=$?
  if [[ -z "$hit" ]]; then
    say unhit
  elif ((code > 2)); then
    say LOST "exit code $code, at $hit"
  elif ((code != 0)) && ! names_file "$dir/said" "$hit"; then
    say LOST "exit code $code and no file is named, at $hit"
  elif ((code == 0)) && ! same_checkpoint "$dir/run" "$work/six" 4; then
    say LOST "exit code 0 without the last checkpoint, at $hit"
  elif ((again > 2 || again != 0 && code == 0)); then
    say LOST "exit code $code, but going on ends with $again, at $hit"
  elif ((again != 0)) && ! names_file "$dir/again" "$hit"; then
    say LOST "going on ends with exit code $again and no file is named, at $hit"
  elif ((again == 0)) && ! same_checkpoint "$dir/run" "$work/six" 6; then
    say LOST "goes on with other bits, at $hit"
  elif ((again == 0)) && [[ "$(metrics_of "$dir/run")" != "$(metrics_of "$work/six")" ]]; then
    say LOST "other metrics, at $hit"
  elif ((again == 0)) && ! same_best "$dir/run" "$work/six"; then
    say LOST "another best checkpoint, at $hit"
  elif ((again != 0)); then
    say named "at $hit"
  elif ((code != 0)); then
    say stopped
  else
    say same
  fi
}
if [[ "${1:-}" == --one ]]; then # what xargs calls
  shift
  one "$@"
  exit 0
fi

root="$(cd "$(dirname "$self")/.." && pwd)"
run=plain sample=0 seed=1 only="" jobs=2 build="$root/build/release" programs="" library="" work=""
while (($# > 0)); do
  case "$1" in
    -h | --help)
      usage
      exit 0
      ;;
  esac
  (($# > 1)) || wrong "$1 needs a value, or is no option"
  case "$1" in
    --sample | --seed | --jobs)
      [[ "$2" =~ ^[0-9]{1,9}$ ]] || wrong "$1 is '$2', expected a number"
      printf -v "${1#--}" '%d' "$((10#$2))"
      ;;
    --run | --only | --build | --programs | --library | --work) printf -v "${1#--}" '%s' "$2" ;;
    *) wrong "unknown option $1" ;;
  esac
  shift 2
done
((jobs > 0)) || wrong "--jobs is 0, expected at least 1"
programs="${programs:-$build/examples/gpt}"
library="${library:-$build/tests/libfaulty_disk.so}"
[[ -x "$programs/pretrain_gpt" ]] || wrong "$programs/pretrain_gpt: is not built (cmake --build $build --target pretrain_gpt)"
[[ -f "$library" ]] || wrong "$library: is not built (cmake --build $build --target faulty_disk)"
PRETRAIN="$(realpath "$programs/pretrain_gpt")"
LIBRARY="$(realpath "$library")"
case "$run" in
  plain) more=() ;;
  ckpt) more=("  ckpt_format: ckpt") ;;
  shards) more=("  max_shard_size: 9000") ;;
  best) more=("  eval_interval: 1" "  eval_iters: 1" "  best_metric_comparison: less" "  keep_checkpoint_max: 1") ;;
  async) more=("  async_save: True") ;;
  ranks) more=() ;;
  *) wrong "--run is '$run', expected plain, ckpt, shards, best, async or ranks" ;;
esac
RUN="$run"
export PRETRAIN LIBRARY RUN OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
keep_work=true
if [[ -z "$work" ]]; then
  work="$(mktemp -d "${TMPDIR:-/tmp}/disk_faults.XXXXXX")"
  keep_work=false
fi
mkdir -p "$work" || exit 1
work="$(cd "$work" && pwd)"
[[ -z "$(ls -A "$work")" ]] || wrong "--work $work: is not empty"

mkdir "$work/begin_first"
for ((i = 0; i < 300; ++i)); do
  echo "line $i of $((i * i % 97)) and $((i * 31 % 53)) says what comes next"
done >"$work/begin_first/text.txt"
cat >"$work/begin_first/run.yaml" <<END
training_config:
  training_iters: 4
  save_interval: 2
  resume_training: True
  output_dir: ./output
  seed: 7
  num_threads: 1
$(printf '%s\n' "${more[@]}")
dataset_config:
  text: [text.txt]
  dataset_dir: ./data
  tokenizer_type: byte
  batch_size: 2
  split: 90,10,0
model_config:
  vocab_size: 260
  num_layers: 1
  hidden_size: 16
  ffn_hidden_size: 32
  num_attention_heads: 2
  seq_length: 16
optimizer_config:
  learning_rate: 1e-3
  lr_decay_style: constant
END
# undisturbed FROM TO STEPS: goes on with a copy.
undisturbed() {
  cp -r "$work/$1" "$work/$2"
  local code=0
  (cd "$work/$2" && train "$3") >"$work/$2.log" 2>&1 || code=$?
  if ((code != 0)); then
    tail -n 20 "$work/$2.log"
    echo "disk_faults: FAILED: the undisturbed run ends with exit code $code; see $work/$2.log"
    exit 1
  fi
}
undisturbed begin_first begin_second 2
undisturbed begin_first four 4
undisturbed four six 6

list="$work/list"
declare -A faults=(
  [open]="EIO EINTR EACCES ENOSPC" [read]="EIO EINTR short" [write]="ENOSPC EIO EINTR EDQUOT short torn half zeros flip"
  [fsync]="EIO ENOSPC EINTR half" [rename]="EIO ENOSPC half" [mmap]="EIO ENOSPC" [close]="EIO ENOSPC"
  [truncate]="ENOSPC EIO EINTR half" [mkdir]="ENOSPC EIO half" [unlink]="EIO half"
)
for phase in first second; do
  mkdir "$work/counted"
  cp -r "$work/begin_$phase" "$work/counted/run"
  (cd "$work/counted/run" && train 4 FAULTY_DISK="$PWD" FAULTY_DISK_LOG="$work/counts_$phase" LD_PRELOAD="$LIBRARY") >"$work/counted.log" 2>&1
  rm -rf "$work/counted"
  while read -r _ call count; do
    echo "disk_faults: $phase run: $count calls of $call" >&2
    for fault in ${faults[$call]}; do
      for ((n = 1; n <= count; ++n)); do
        echo "$phase $call $fault once $n"
        # A call that is interrupted for ever, or gives less each time, is no disk.
        [[ "$fault" == EINTR || "$fault" == short ]] || echo "$phase $call $fault stays $n"
      done
    done
  done < <(grep '^count ' "$work/counts_$phase" | sort -k2,2 -k3,3nr | sort -u -k2,2)  # of ranks the one with most
done >"$list"
for path in "$work"/four/output/checkpoint/step_00000004/*; do
  for damage in flip1 flip20 flip50 flip80 flip99 cut empty remove; do
    echo "file $(basename "$path") $damage"
  done
done >>"$list"
if [[ -n "$only" ]]; then
  grep -E -e "$only" "$list" >"$list.some"
  mv "$list.some" "$list"
fi
if ((sample > 0)); then
  shuf -n "$sample" --random-source=<(yes "$seed") "$list" >"$list.some"
  mv "$list.some" "$list"
fi
total="$(wc -l <"$list")"
((total > 0)) || wrong "--only '$only' matches no fault"
echo "disk_faults: $total faults" >&2

nl -w1 -s' ' "$list" | xargs -P "$jobs" -L 1 bash "$self" --one "$work" >"$work/verdicts"
grep '^LOST' "$work/verdicts"
count() { grep -c "^$1" "$work/verdicts"; }
lost="$(count LOST)" done="$(wc -l <"$work/verdicts")"
text="$total faults: $(count same) without a difference, $(count stopped) stopped with the file's name and went on with the same bits, $(count named) refused by the file's name, $(count unhit) not reached, $lost lost"
if ((lost > 0 || done != total)); then
  echo "disk_faults: FAILED: $text; $work/verdicts, $work/lost"
  exit 1
fi
$keep_work || rm -rf "$work"
echo "disk_faults: passed: $text"
