#!/usr/bin/env bash
# From a fresh clone to a trained model that writes text.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: scripts/quickstart.sh [--text FILE...] [OPTION of pretrain_gpt]...

Installs the missing packages of packages.txt, builds a release, trains the preset
examples/gpt/pretrain_gpt_tiny.yaml, and lets the model continue a prompt.

  --text FILE...  train on these files (plain text; *.jsonl: one object with a "text" a line)
                  instead of the King James Bible; their tokens go to dataset/user_text/

All other options go to pretrain_gpt, for example --set training_config.training_iters=100
TEXT
}

texts=()
options=()
output_dir=./output
while (($# > 0)); do
  case "$1" in
    -h | --help)
      usage
      exit 0
      ;;
    --text)
      shift
      while (($# > 0)) && [[ "$1" != --* ]]; do
        texts+=("$1")
        shift
      done
      if ((${#texts[@]} == 0)); then
        echo "quickstart.sh: --text: at least one file is expected" >&2
        exit 2
      fi
      continue
      ;;
    *training_config.output_dir=*)
      output_dir="${1#*training_config.output_dir=}"
      ;;
  esac
  options+=("$1")
  shift
done
for i in "${!texts[@]}"; do
  if [[ ! -f "${texts[i]}" || ! -r "${texts[i]}" ]]; then
    echo "quickstart.sh: --text: cannot read ${texts[i]}" >&2
    exit 2
  fi
  texts[i]="$(realpath -- "${texts[i]}")"
done

# shellcheck source-path=SCRIPTDIR source=setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
set_up pretrain_gpt generate preprocess_data
cd "$root"
readonly programs="$build/examples/gpt"

prompt="In the beginning"
if ((${#texts[@]} > 0)); then
  readonly prefix=dataset/user_text/user
  mkdir -p "$(dirname "$prefix")"
  "$programs/preprocess_data" --input "${texts[@]}" --output_prefix "$prefix" \
    --tokenizer_type sentencepiece --train_tokenizer --vocab_size 512 --append_eod \
    --split_documents blank_line | tee "$(dirname "$prefix")/prepared.txt"
  documents="$(sed -n 's/^\([0-9]*\) documents .*/\1/p' "$(dirname "$prefix")/prepared.txt")"
  if ((${documents:-0} < 100)); then
    echo "Too few paragraphs to set some aside for validation: there will be no evaluation."
    options=(--set training_config.eval_interval=null "${options[@]}")
  fi
  options=(--set "dataset_config.data_path=${prefix}_text_document"
    --set "dataset_config.tokenizer_model=${prefix}.model" "${options[@]}")
  # The first words of the user's own text.
  if [[ "${texts[0]}" != *.json* ]]; then
    prompt="$(head -c 400 -- "${texts[0]}" | tr -s '[:space:]' ' ' | sed 's/^ //' | cut -d' ' -f1-4)"
  fi
fi

# Checkpoints that are newer than this file are this run's; an earlier one may have left higher steps.
started="$(mktemp)"
trap 'rm -f "$started"' EXIT
# What an earlier quick start has left in the output folder is moved to its sub-folder old/.
"$programs/pretrain_gpt" --config_path examples/gpt/pretrain_gpt_tiny.yaml --overwrite \
  "${options[@]}"

checkpoint="$(find "$output_dir/checkpoint" -mindepth 1 -maxdepth 1 -type d -name 'step_*' \
  -newer "$started" 2>/dev/null | sort | tail -n 1)" || true
if [[ -n "$checkpoint" ]]; then
  printf '\n%s continues "%s":\n\n' "$checkpoint" "$prompt"
  "$programs/generate" --checkpoint "$checkpoint" --prompt "$prompt" --max_new_tokens 100 \
    --temperature 0.8 --top_k 40 --seed 1
else
  echo "No checkpoint below $output_dir/checkpoint, so there is nothing to generate from." >&2
fi
