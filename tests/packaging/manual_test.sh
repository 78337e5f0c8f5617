#!/usr/bin/env bash
# manual_test.sh MANUAL PROGRAMS: the man pages and completions in the folder MANUAL, made from the
# tables of the programs in the folder PROGRAMS: groff and mandoc find nothing wrong, each option is
# there, bash and zsh complete.
set -euo pipefail
manual="$1" programs="$2"
# shellcheck source-path=SCRIPTDIR source=checks.sh
source "$(dirname "${BASH_SOURCE[0]}")/checks.sh"

# Pages: no warning, each option of --help, each key.
for page in "$manual"/man/*.gz; do
  name="$(basename "$page" .gz)"
  gzip -dc "$page" >"$scratch/$name"
  if has groff "pages by groff"; then
    said="$(groff -man -ww -z -Tutf8 "$scratch/$name" 2>&1)" || true
    [[ -z "$said" ]] || fail "groff of $name: $said"
  fi
  if has mandoc "pages by mandoc"; then
    said="$(mandoc -T lint -W warning "$scratch/$name" 2>&1)" || true
    [[ -z "$said" ]] || fail "mandoc of $name: $said"
  fi
done
for program in accuracy compare_checkpoints evaluate export finetune_gpt generate preprocess_data pretrain_gpt; do
  page="$(sed 's/\\-/-/g' "$scratch/$program.1")"
  while read -r option; do
    [[ "$page" == *"fB$option\\fR"* ]] || fail "$program.1 lacks $option"
    [[ "$program" == accuracy ]] || grep -qF -- "[$option" <(tr "'" '[' <"$manual/bash/$program") ||
      grep -qwF -- "$option" "$manual/bash/$program" || fail "bash does not complete $option of $program"
  done < <({
    "$programs/$program" --help
    [[ "$program" != pretrain_gpt ]] || for topic in accuracy plan; do "$programs/$program" --help "$topic"; done
  } | sed -n 's/^  \(-[a-z] \[ \)\{0,1\}\(--[a-z0-9_-]*\).*/\2/p')
done
keys="$(sed 's/\\-/-/g' "$scratch/pretrain_gpt.yaml.5")"
while read -r key; do
  [[ "$keys" == *"fB$key\\fR ("* ]] || fail "pretrain_gpt.yaml.5 lacks $key"
done < <("$programs/pretrain_gpt" --help training_config | sed -n 's/^  \([a-z_.]*\) (.*/\1/p')
if has man "a page as man shows it"; then
  text="$(MANWIDTH=100 man -l "$scratch/pretrain_gpt.sh.1" 2>"$scratch/man.txt")"
  [[ "$text" == *RANKS*"number of ranks"* && ! -s "$scratch/man.txt" ]] ||
    fail "man -l pretrain_gpt.sh.1 shows: $text $(<"$scratch/man.txt")"
fi

bash "$here/bash_completion_test.sh" "$manual/bash" "$programs" || failures=$((failures + 1))
if has zsh "completion in zsh"; then
  zsh -f "$here/zsh_completion_test.zsh" "$manual/zsh" || failures=$((failures + 1))
else
  for file in "$manual"/zsh/*; do
    [[ "$(head -n 1 "$file")" == "#compdef "* ]] || fail "$file"
  done
fi
finish
