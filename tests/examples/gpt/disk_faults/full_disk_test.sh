#!/usr/bin/env bash
# full_disk_test.sh PRETRAIN_GPT FAULTY_DISK: a disk without room for one checkpoint is found before
# anything is trained, one that fills up before the save; a run that ends worse than it began ends
# with exit code 1. What is free is what the library says.
set -uo pipefail
pretrain="$1" library="$2"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" || exit 1
export OMP_NUM_THREADS=1
failures=0

for ((i = 0; i < 300; ++i)); do
  echo "line $i of $((i * i % 97)) says what comes next"
done >text.txt
cat >run.yaml <<'END'
training_config: {training_iters: 6, seed: 7, num_threads: 1}
dataset_config: {text: [text.txt], dataset_dir: ./data, tokenizer_type: byte, batch_size: 2, split: "90,10,0"}
model_config: {vocab_size: 260, num_layers: 1, hidden_size: 16, ffn_hidden_size: 32, num_attention_heads: 2, seq_length: 16}
optimizer_config: {learning_rate: 1e-3}
END

# expect CODE OUTPUT_DIR [VARIABLE=VALUE...] -- OPTION...: into `said`.
expect() {
  local want="$1" output="$2" code=0 variables=()
  shift 2
  while [[ "$1" != -- ]]; do
    variables+=("$1")
    shift
  done
  env "${variables[@]}" "$pretrain" --config_path run.yaml --set training_config.output_dir="$output" "${@:2}" >said 2>&1 || code=$?
  [[ "$code" == "$want" ]] || fail "exit code $code, expected $want"
}
fail() {
  echo "FAILED: $*:" >&2
  cat said >&2
  failures=$((failures + 1))
}
says() { grep -qE -e "$1" said || fail "does not say '$1'"; }
says_not() { ! grep -qE -e "$1" said || fail "says '$1'"; }
disk=("FAULTY_DISK=$scratch" "LD_PRELOAD=$library")

expect 2 none "${disk[@]}" FAULTY_DISK_FREE=1000 --
says "a checkpoint takes about .* are free in $scratch/none; there is no room for one. Choose another training_config.output_dir"
[[ ! -e none/metrics.jsonl ]] || fail "has trained"
expect 0 unsaved "${disk[@]}" FAULTY_DISK_FREE=1000 -- --set training_config.save_last=False

# Full after the start, which asks twice, and to the end.
expect 1 fills "${disk[@]}" "FAULTY_DISK_FREE=1000000000 1000000000 1000000000 1000" --
says "step 2: THE NEXT CHECKPOINT WILL NOT FIT: it takes about .* are free in $scratch/fills"
says "there is no room for"
[[ "$(grep -c 'WILL NOT FIT' said)" == 1 ]] || fail "warns more than once"
# Someone makes room.
expect 0 room "${disk[@]}" "FAULTY_DISK_FREE=1000000000 1000000000 1000 1000 1000000000" --
says "step 1: THE NEXT CHECKPOINT WILL NOT FIT"
says "step 3: there is room for a checkpoint again"
[[ -f room/checkpoint/step_00000006/manifest.json ]] || fail "has no checkpoint"

expect 0 plain --
says_not "worse than it began"
expect 1 worse -- --set optimizer_config.learning_rate=3 --set training_config.training_iters=30
says "ends worse than it began: the lowest loss of its last 10 steps is .*, its first was 5"
says "a lower optimizer_config.learning_rate \(it is 3"
[[ -f worse/checkpoint/step_00000030/manifest.json ]] || fail "has no checkpoint"

((failures == 0)) && echo "full_disk_test: passed"
exit "$((failures > 0))"
