# shellcheck shell=bash
# Of root_test.sh: what somebody does who has just installed the package, as a user without rights.
set -euo pipefail
fail() {
  echo "FAILED: $*" >&2
  exit 1
}
# says WORDS COMMAND...: the command succeeds and prints the words.
says() {
  local -r words="$1"
  shift
  local text
  text="$("$@" 2>&1 | tr -d '\0')" || fail "$* ended with $?:"$'\n'"$text"
  [[ "$text" == *"$words"* ]] || fail "$* does not print '$words':"$'\n'"$text"
}
for compiler in cc c++ gcc g++ clang; do
  ! command -v "$compiler" || fail "there is a compiler, $compiler"
done
[[ "$(id -u)" != 0 ]] || fail "this should not run as root"
says "CPU level" pretrain_gpt --version
for program in /usr/bin/{pretrain_gpt,pretrain_gpt_diagnosis,generate,finetune_gpt,evaluate,export,preprocess_data,compare_checkpoints,accuracy,pretrain_gpt.sh}; do
  says "$(basename "$program" _diagnosis)" "$program" --help
  [[ -s "/usr/share/man/man1/${program##*/}.1.gz" ]] || fail "${program##*/} has no man page"
  [[ -s "/usr/share/bash-completion/completions/${program##*/}" ]] || fail "${program##*/} has no completion"
done
# The model of the quick start, on its text, by the launcher and its preset, on two ranks.
few=(--set training_config.training_iters=4 --set training_config.save_interval=4
  --set training_config.eval_interval=null)
RANKS=2 says "Step:" pretrain_gpt.sh pretrain_gpt_tiny.yaml "${few[@]}" --set training_config.log_interval=1 \
  --set dataset_config.batch_size=2
says "In the beginning" generate --checkpoint output --prompt "In the beginning" --max_new_tokens 5 --seed 1
says "loss" pretrain_gpt --plot output
