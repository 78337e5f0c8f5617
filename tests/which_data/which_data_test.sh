#!/usr/bin/env bash
# What pretrain_gpt --which_data and --which_steps print is what data_reader.py finds, which shares
# no code with them: blends, several epochs, layouts, runs that went on, data of other programs.
#
#   which_data_test.sh SCRATCH MPIEXEC PRETRAIN_GPT PREPROCESS_DATA
#
# Exit code 77, which ctest shows as skipped, where there is no Python.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
scratch="$1" mpiexec="$2" pretrain_gpt="$3" preprocess_data="$4"
if ! python3 -c 'import json' 2> /dev/null; then
  echo "skipped: no Python (apt-get install python3)"
  exit 77
fi
reader=(python3 "$here/data_reader.py")
rm -rf "$scratch"
mkdir -p "$scratch/data" "$scratch/texts"
cd "$scratch"
"${reader[@]}" self_test

# Documents of many lengths: paragraphs behind a byte-order mark, and lines of JSON.
{
  printf '\xef\xbb\xbf'
  for i in $(seq 70); do
    for _ in $(seq $((i * 7 % 4 + 1))); do
      echo "And the king went up to city $((i * 7 % 11)), and departed from house $((i * 5 % 13))."
    done
    echo
    [[ $((i % 5)) != 0 ]] || printf ' \r\n\n'
  done
} > texts/a.txt
for i in $(seq 30); do echo "Another paragraph, number $i.$(printf ' x%.0s' $(seq "$i"))"; echo; done > texts/more.txt
for i in $(seq 50); do
  printf '{"id": %d, "text": "Zeile %d\\nmit \\u00e4 und ß%s"}\n' "$i" "$i" "$(printf '.%.0s' $(seq $((i * 11 % 40 + 1))))"
done > texts/b.jsonl
printf '{"text": ""}\n\n{"text": "the last line has no newline"}' >> texts/b.jsonl
"$preprocess_data" --input texts/a.txt texts/more.txt --output_prefix data/a --tokenizer_type byte \
  --split_documents blank_line --append_eod > preprocess.log
"$preprocess_data" --input texts/b.jsonl --output_prefix data/b --tokenizer_type byte >> preprocess.log
"${reader[@]}" documents data/a_text_document
"${reader[@]}" documents data/b_text_document
"${reader[@]}" write_dataset data/c

cat > run.yaml << 'END_OF_YAML'
training_config:
  training_iters: 12
  seed: 77
  num_threads: 1
dataset_config:
  tokenizer_type: byte
  batch_size: 3
  micro_batch_num: 2
  split: 90,10,0
model_config:
  vocab_size: 260
  num_layers: 1
  hidden_size: 16
  ffn_hidden_size: 32
  num_attention_heads: 2
  seq_length: 32
optimizer_config:
  learning_rate: 1e-3
END_OF_YAML

# described NAME PATH ITERS SEQ DP [MEMBERS]: NAME.json, which the reader reads; PATH as JSON.
described() {
  cat > "$1.json" << END_OF_JSON
{"data_path": $2, "split": "90,10,0", "seed": 77, "seq_length": $4, "batch_size": 3,
 "micro_batch_num": 2, "data_parallel": $5, "training_iters": $3 ${6:+, $6}}
END_OF_JSON
}

path_key=data_path configuration=run.yaml
# asked NAME PATH ITERS SEQ WORD...: the program with this configuration, to NAME.lines.
asked() {
  local name="$1"
  "$pretrain_gpt" --config_path "$configuration" --set "dataset_config.$path_key=$2" \
    --set "training_config.training_iters=$3" --set "model_config.seq_length=$4" "${@:5}" \
    > "$name.lines" 2> "$name.notes" || { cat "$name.notes"; exit 1; }
}

# check NAME PATH ITERS SEQ DP MEMBERS DOCUMENT [WORD...]: all steps at once, and the steps of a document.
check() {
  local name="$1" words=("${@:8}") first=1
  echo "$name"
  described "$1" "$2" "$3" "$4" "$5" "$6"
  [[ ! "$6" =~ \"first_step\":\ ([0-9]+) ]] || first="${BASH_REMATCH[1]}"
  asked "$name" "$2" "$3" "$4" --which_data "$first-$3" --ranks "$5" ${words[@]+"${words[@]}"}
  "${reader[@]}" rows "$name.json" "$name.lines"
  asked "$name.document" "$2" "$3" "$4" --which_steps "$7" --ranks "$5" ${words[@]+"${words[@]}"}
  "${reader[@]}" steps "$name.json" "$7" "$name.document.lines"
}

a=data/a_text_document b=data/b_text_document
blend="[0.7, \"$a\", 0.3, \"$b\"]"
check one_epoch "[\"$a\"]" 12 32 1 '"expect": [[1, false]]' "$a:5"
check last_epoch_apart "[\"$a\"]" 62 32 1 '"expect": [[2, true]]' "$a:80"
check last_epoch_among "[\"$b\"]" 18 32 1 '"expect": [[2, false]]' "$b:0"
check blend "$blend" 55 32 2 '"expect": [[2, true], [4, true]]' "$b:7"
check blend_of_three "[2, \"$b\", 5.5, \"data/c\", 1, \"$a\"]" 10 80 3 '' "data/c:13"
check unweighted "[\"$a\", \"$b\", \"data/c\"]" 11 24 4 '' "data/c:2"
check other_programs '["data/c"]' 25 16 2 '' "data/c:51"
grep -q 'data/c: has no data/c.sources.json' other_programs.notes
grep -v 'split:' run.yaml > own_part.yaml
path_key=train_data_path configuration=own_part.yaml
check own_part "[3, \"$a\", 2, \"$b\"]" 20 32 2 '"split": "1"' "$b:51"
path_key=data_path configuration=run.yaml
# One document, of which training has the first tokens.
"$preprocess_data" --input texts/more.txt --output_prefix data/one --tokenizer_type byte >> preprocess.log
check one_document '["data/one_text_document"]' 30 32 1 '"expect": [[4, true]]' data/one_text_document:0
grep -q 'so it cuts tokens' one_document.notes

# Each step alone, and a job of two ranks: the same lines.
: > alone.lines
for step in 1 2 3; do
  asked step "$blend" 55 32 --which_data "$step" --ranks 2
  cat step.lines >> alone.lines
done
head -n 36 blend.lines | cmp - alone.lines
"$mpiexec" --oversubscribe -n 2 "$pretrain_gpt" --config_path run.yaml \
  --set "dataset_config.data_path=$blend" --set training_config.training_iters=55 --which_data 1-3 \
  > job.lines 2> job.notes
cmp job.lines alone.lines

# Runs that went on: longer, twice, then with other data.
train() {
  "$pretrain_gpt" --config_path run.yaml --set "dataset_config.data_path=$1" \
    --set "training_config.training_iters=$2" "${@:3}" > train.log 2>&1 || { cat train.log; exit 1; }
}
goes_on=(--set training_config.resume_training=True)
saved=output/checkpoint/step_000000
train "$blend" 10
check resumed "$blend" 30 32 1 "\"checkpoint\": \"${saved}10\"" "$a:9" "${goes_on[@]}"
train "$blend" 30 "${goes_on[@]}"
check resumed_twice "$blend" 90 32 1 "\"checkpoint\": \"${saved}30\"" "$b:9" "${goes_on[@]}"
check resumed_at_its_end "$blend" 30 32 1 "\"checkpoint\": \"${saved}30\"" "$b:9" "${goes_on[@]}"
# Longer from the start is another order: the case can tell.
asked fresh "$blend" 90 32 --which_data 1-90
if cmp -s fresh.lines resumed_twice.lines; then
  echo "a run that went on has the samples of one that was planned so"
  exit 1
fi
goes_on+=(--set training_config.new_dataset=True)
check other_data "[\"$b\"]" 50 32 1 "\"checkpoint\": \"${saved}30\", \"new_dataset\": true, \"first_step\": 31" \
  "$b:20" "${goes_on[@]}"

train "[\"$b\"]" 34 "${goes_on[@]}"
check went_on_with_other_data "[\"$b\"]" 80 32 1 "\"checkpoint\": \"${saved}34\", \"first_step\": 31" \
  "$b:20" --set training_config.resume_training=True

# The comparison sees one number that is not so.
sed 's/"count":/"count":1/' blend.lines > other.lines
if "${reader[@]}" rows blend.json other.lines 2> other.log; then
  echo "another count was not seen"
  exit 1
fi
grep -q 'line 1:' other.log
