#!/usr/bin/env bash
# bash_completion_test.sh COMPLETIONS PROGRAMS: what bash offers at the end of a line.
set -uo pipefail
completions="$(realpath "$1")" programs="$(realpath "$2")"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/bin" "$scratch/share/tapestry"
touch "$scratch/share/tapestry/pretrain_gpt_tiny.yaml"
for program in "$completions"/*; do
  cp /bin/true "$scratch/bin/${program##*/}"
  bash -n "$program" || exit 1
done
PATH="$scratch/bin:$PATH"
cd "$scratch" && mkdir folder && touch my.yaml notes.txt
failures=0
# shellcheck disable=SC2317  # completions call it
compopt() { options+=" $*"; } # outside of a real completion it is an error

# offers LINE WORD...: at the end of the line all of the words are offered, and none after '!'.
offers() {
  local -r line="$1"
  shift
  local -a words
  local part
  COMP_WORDS=()
  read -ra words <<<"$line"
  for part in "${words[@]}"; do # '=' is a word of its own
    while [[ "$part" == *=* ]]; do
      [[ -z "${part%%=*}" ]] || COMP_WORDS+=("${part%%=*}")
      COMP_WORDS+=("=")
      part="${part#*=}"
      [[ -n "$part" ]] || break
    done
    [[ -z "$part" ]] || COMP_WORDS+=("$part")
  done
  [[ "$line" != *" " ]] || COMP_WORDS+=("")
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
  options=""
  COMPREPLY=()
  local -r program="${COMP_WORDS[0]##*/}"
  # shellcheck disable=SC1090  # each program's own
  source "$completions/$program"
  "$(complete -p "$program" | sed 's/.*-F \([^ ]*\) .*/\1/')"
  local -r got=" ${COMPREPLY[*]} "
  for part in "$@"; do
    if [[ "$part" == '!'* ]]; then
      [[ "$got" != *" ${part#!} "* ]] || fail_line "$line" "${part#!} is offered"
    else
      [[ "$got" == *" $part "* ]] || fail_line "$line" "$part is not offered, but:$got"
    fi
  done
}
fail_line() {
  echo "FAILED: bash completion of '$1': $2" >&2
  failures=$((failures + 1))
}

offers 'pretrain_gpt --dr' --dry_run '!--set'
offers 'pretrain_gpt --' --config_path --set --find_fault '!--lr' '!--train_iters'
offers 'pretrain_gpt --l' --lr '!--set'
offers 'pretrain_gpt --x ' steps tokens time
offers 'pretrain_gpt --x=t' tokens time '!steps'
offers 'pretrain_gpt --set optimizer_config.optimizer_t' optimizer_config.optimizer_type=
[[ "$options" == *nospace* ]] || fail_line --set "a blank comes behind the key"
offers 'pretrain_gpt --set optimizer_config.optimizer_type=' AdamW
offers 'pretrain_gpt --set optimizer_config.optimizer_type=Ada' AdamW '!SGD'
offers 'pretrain_gpt --optimizer_type=' AdamW
offers 'pretrain_gpt --optimizer_type ' AdamW
offers 'pretrain_gpt --set training_config.exact=' True False
offers 'pretrain_gpt --model_config.hid' --model_config.hidden_size
offers 'pretrain_gpt --help ' training_config accuracy plan '!lr'
offers 'pretrain_gpt --help learning_r' learning_rate
offers 'pretrain_gpt --convert_config ' 1.x 2.0
offers 'pretrain_gpt --config_path ' my.yaml folder "$scratch/share/tapestry/pretrain_gpt_tiny.yaml" '!notes.txt'
offers 'pretrain_gpt.sh ' my.yaml pretrain_gpt_tiny.yaml '!notes.txt'
offers 'pretrain_gpt.sh --restarts 3 pre' pretrain_gpt_tiny.yaml
offers 'pretrain_gpt.sh --rest' --restarts
offers 'pretrain_gpt.sh pretrain_gpt_tiny.yaml ' '!my.yaml'
offers 'pretrain_gpt.sh pretrain_gpt_tiny.yaml --over' --overwrite
offers 'pretrain_gpt --plot a ' folder notes.txt
offers 'pretrain_gpt --overwrite ' '!folder'
offers 'generate --dtype ' float32 bfloat16 q8_0 q4_0
offers 'generate --checkpoint ' folder
offers 'finetune_gpt --task ' dpo grpo
offers 'finetune_gpt --export hf ' gguf
offers 'finetune_gpt --set lora_config.' lora_config.lora_rank=
offers 'preprocess_data --tokenizer_type s' sentencepiece '!byte'
offers 'accuracy ' checklist compare curves
offers 'accuracy curves --' --loss_bound --csv '!--no_rerun'
offers 'accuracy compare --bits --' --no_rerun '!--map'
offers 'compare_checkpoints ' folder
offers './bin/export --to ' hf gguf
offers './bin/export --type Q' Q8_0
# shellcheck disable=SC2034  # for the shell's own `export`
tapestry_variable_of_the_shell=1
offers 'export tapestry_var' tapestry_variable_of_the_shell

# Each program that is installed, by its own --help.
for program in "$completions"/*; do
  name="${program##*/}"
  [[ "$name" != *.sh && "$name" != pretrain_gpt_diagnosis ]] || continue
  "$programs/$name" --help >/dev/null || fail_line "$name" "there is no such program"
done
exit $((failures > 0))
