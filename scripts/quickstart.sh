#!/usr/bin/env bash
# From a fresh clone to a trained model that writes text.
set -euo pipefail

# Breaks lines between words where a terminal has no room for them.
to_fit() {
  local columns=""
  [[ ! -t 1 ]] || columns="$(stty size <&3 2>/dev/null | cut -d ' ' -f 2)"
  fold -s -w "$((${columns:-0} >= 20 ? columns : 100000))"
} 3>&1

usage() {
  to_fit <<'TEXT'
Usage: scripts/quickstart.sh [--text FILE...] [--preset NAME] [OPTION of pretrain_gpt]...

Installs the missing packages of packages.txt, builds a release, trains a preset, lets the model
continue a prompt, and builds the other programs. What installing and building print is in
build/quickstart.log.

  --text FILE...  train on these files, folders of them, or patterns (plain text; *.jsonl: one
                  object with a "text" a line) instead of the King James Bible; their tokens go to
                  dataset/user_text/
  --preset NAME   train examples/gpt/pretrain_gpt_NAME.yaml, tiny unless said otherwise; char is
                  nanoGPT's character example

All other options go to pretrain_gpt, for example --set training_config.training_iters=100
TEXT
}

texts=()
options=()
preset=tiny
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
    --preset)
      preset="${2:-}"
      shift $(($# > 1 ? 2 : 1))
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
  if [[ -d "${texts[i]}" && -z "$(find "${texts[i]}" -type f -print -quit)" ]]; then
    echo "quickstart.sh: --text: the folder ${texts[i]} has no files" >&2
    exit 2
  elif [[ -r "${texts[i]}" && (-f "${texts[i]}" || -d "${texts[i]}") ]]; then
    texts[i]="$(realpath -- "${texts[i]}")"
  elif [[ ! -e "${texts[i]}" && "${texts[i]}" == *[*?[]* ]]; then # a pattern, for preprocess_data
    [[ "${texts[i]}" == /* ]] || texts[i]="$PWD/${texts[i]}"
  else
    echo "quickstart.sh: --text: cannot read ${texts[i]}" >&2
    exit 2
  fi
done

config="examples/gpt/pretrain_gpt_$preset.yaml"
here="$(dirname "${BASH_SOURCE[0]}")"
if [[ ! -f "$here/../$config" ]]; then
  names=("$here"/../examples/gpt/pretrain_gpt_*.yaml)
  names=("${names[@]##*/pretrain_gpt_}")
  echo "quickstart.sh: --preset: there is no $config, but there are ${names[*]%.yaml}" >&2
  exit 2
fi

# shellcheck source-path=SCRIPTDIR source=setup.sh
source "$here/setup.sh"
# shellcheck disable=SC2034  # setup.sh reads it
cpu_levels=native # a quarter less to compile; scripts/test.sh builds all
start_log
announce 14
echo "  train $config in $output_dir, a few minutes for tiny, and let the model write"
echo
first=(pretrain_gpt generate)
((${#texts[@]} == 0)) || first+=(preprocess_data)
set_up "Building the training program" "${first[@]}"
cd "$root"
readonly programs="$build/examples/gpt"

prompt="In the beginning"
if ((${#texts[@]} > 0)); then
  readonly prefix=dataset/user_text/user
  mkdir -p "$(dirname "$prefix")"
  preset_value() { sed -n "s/^ *$1: *\([A-Za-z0-9_]*\).*/\1/p" "$config" | head -n 1; }
  tokenizer="$(preset_value tokenizer_type)"
  vocab_size="$(preset_value vocab_size)"
  prepare=(--tokenizer_type "$tokenizer")
  case "$tokenizer" in
    sentencepiece)  # paragraphs are documents; more pieces where the script needs them
      prepare+=(--train_tokenizer --vocab_size "$((vocab_size < 8000 ? vocab_size : 8000))" --grow_vocab
        --append_eod --split_documents blank_line)
      ;;
    character) prepare+=(--train_tokenizer) ;;  # each file is one text, as in nanoGPT
    *) prepare+=(--append_eod --split_documents blank_line) ;;
  esac
  "$programs/preprocess_data" --input "${texts[@]}" --output_prefix "$prefix" "${prepare[@]}"
  made="$(sed -n 's/.*"vocab_size": *\([0-9]*\).*/\1/p' "${prefix}_text_document.tokenizer.json")"
  if ((made > vocab_size)); then
    options=(--set "model_config.vocab_size=$made" "${options[@]}")
  fi
  options=(--set "dataset_config.data_path=${prefix}_text_document" "${options[@]}")
  # The first words of the user's own text.
  if [[ -f "${texts[0]}" && "${texts[0],,}" != *.@(json|jsonl|ndjson|jl|jsonlines) ]]; then
    words="$(head -c 4000 -- "${texts[0]}" | iconv -c -f UTF-8 -t UTF-8 2>/dev/null |
      sed -n 's/^\xEF\xBB\xBF//; s/^[[:space:]]*//; s/[[:space:]]*$//; /./{p;q}' | cut -d' ' -f1-4)" || true
    prompt="$(LC_ALL=C.UTF-8 && echo "${words:0:60}")"
    prompt="${prompt:-In the beginning}"
  fi
fi

# Checkpoints that are newer than this file are this run's; an earlier one may have left higher steps.
started="$(mktemp)"
trap 'stop_watching; rm -f "$started"' EXIT
# What an earlier quick start has left in the output folder is moved to its sub-folder old/.
"$programs/pretrain_gpt" --config_path "$config" --overwrite "${options[@]}"

checkpoint=""
while IFS= read -r -d '' found; do
  checkpoint="$found"
done < <(find "$output_dir/checkpoint" -mindepth 1 -maxdepth 1 -type d -name 'step_*' \
  -newer "$started" -print0 2>/dev/null | sort -z)
if [[ -z "$checkpoint" ]]; then
  echo "No checkpoint below $output_dir/checkpoint, so there is nothing to generate from." >&2
else
  printf '\n%s continues "%s":\n\n' "$checkpoint" "$prompt"
  "$programs/generate" --checkpoint "$checkpoint" --prompt "$prompt" --max_new_tokens 100 \
    --temperature 0.8 --top_k 40 --seed 1
fi

echo
build_targets "Building the other programs" programs ||
  fail 1 "the model above is trained; this builds the other programs:" \
    "cmake --build $(printf '%q' "$build") --target programs"

# in_words WORD...: as a shell reads them; plain words as they are.
in_words() {
  printf '%q ' "$@" | sed 's/ $//'
}
printf '\nThe programs are in %s; for this shell, or in ~/.bashrc:\n\n' "$programs"
# shellcheck disable=SC2016  # the line is for another shell
printf '  export PATH=%q:"$PATH"\n\nWhat to do next, in %s:\n\n' "$programs" "$root"
if [[ -n "$checkpoint" ]]; then
  printf '  %s --prompt "..."\n' "$(in_words generate --checkpoint "$checkpoint")"
else
  printf '  %s\n' "$(in_words pretrain_gpt --config_path "$config" --dry_run)"
fi
cat <<'TEXT'
  bash scripts/quickstart.sh --text my_book.txt    # train on a text of yours
  finetune_gpt --from_hf MODEL --data FILE         # tune a Hugging Face model: docs/finetune.md
TEXT
