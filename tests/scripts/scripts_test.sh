#!/usr/bin/env bash
# shellcheck disable=SC2016  # the bodies of stand-ins are expanded when they run
# Test `scripts`: quickstart.sh, test.sh and setup.sh against stand-ins of the programs that they
# call. Nothing is installed, configured or built.
set -euo pipefail
source_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT

# Every script says what it does, and does nothing else.
for script in aarch64 disk_faults fault_drill format layout_matrix llama_cpp quickstart test tidy torture; do
  for option in -h --help; do
    text="$(bash "$source_root/scripts/$script.sh" $option)" && [[ -n "$text" ]] || {
      echo "FAILED: $script.sh $option" >&2
      exit 1
    }
  done
done

stubs="$scratch/stubs"
calls="$scratch/calls"
mkdir -p "$stubs" "$scratch/clone/build/release/examples/gpt" "$scratch/home"
cp -r "$source_root/scripts" "$scratch/clone/scripts"
mkdir -p "$scratch/clone/examples/gpt"
cp "$source_root"/examples/gpt/*.yaml "$scratch/clone/examples/gpt"
printf '# a comment\ncmake\n\nsome-package\nother-package  # why\n' >"$scratch/clone/packages.txt"

stub() {  # stub NAME BODY: a program that records its call, then does BODY
  local path="$stubs/$1"
  [[ "$1" != */* ]] || path="$1"
  printf '#!/usr/bin/env bash\necho "%s $*" >>"%s"\n%s\n' "$(basename "$1")" "$calls" "$2" >"$path"
  chmod +x "$path"
}
# Installed: cmake, and whatever is listed in $scratch/installed.
stub dpkg-query 'for last; do :; done
  if [[ "$last" == cmake ]] || grep -qx -- "$last" "'"$scratch"'/installed"; then echo -n installed; fi'
stub cmake 'exit 0'
stub ctest 'exit 7'
programs="$scratch/clone/build/release/examples/gpt"
stub "$programs/preprocess_data" 'echo "{\"vocab_size\": $vocab}" >dataset/user_text/user_text_document.tokenizer.json'
stub "$programs/generate" 'echo "let there be light"'
stub "$programs/pretrain_gpt" 'mkdir -p output/checkpoint/step_00000009; touch -d yesterday output/checkpoint/step_00000009
  mkdir -p output/checkpoint/step_00000002 output/checkpoint/step_00000003
  sleep 0.05  # longer than a tick of file times
  touch output/checkpoint/step_00000003 output/checkpoint/step_00000002'

user=1000
works=yes
export vocab=512
failures=0
run() {  # run SCRIPT ARGUMENT...: sets code and out
  : >"$calls"
  stub id "echo $user"
  stub sudo '[[ "'"$works"'" == yes ]] || exit 1; [[ "$1" == -n ]] && shift; "$@"'
  stub apt-get '[[ "'"$works"'" == yes ]] || exit 100
    [[ "$*" != *install* ]] || printf "some-package\nother-package\n" >"'"$scratch"'/installed"'
  code=0
  out="$(cd "$scratch/home" && PATH="$stubs:$PATH" bash "$scratch/clone/scripts/$1" "${@:2}" 2>&1)" || code=$?
}
expect() {  # expect DESCRIPTION CONDITION...
  if ! "${@:2}"; then
    printf 'FAILED: %s (exit %s)\noutput:\n%s\ncalls:\n%s\n' "$1" "$code" "$out" "$(<"$calls")"
    failures=$((failures + 1))
  fi
}
exits() { [[ "$code" == "$1" ]]; }
says() { [[ "$out" == *"$1"* ]]; }
called() { grep -qF -- "$1" "$calls"; }
not_called() { ! grep -qF -- "$1" "$calls"; }

readonly line="apt-get update && apt-get install -y --no-install-recommends some-package other-package"
for script in quickstart.sh test.sh; do
  : >"$scratch/installed"
  user=1000 works=no
  run "$script"
  expect "$script without rights exits with 2" exits 2
  expect "$script without rights prints the line" says "$line"
  expect "$script without rights builds nothing" not_called "cmake --"
  user=0 works=no
  run "$script"
  expect "$script without network exits with 2" exits 2
  expect "$script without network prints the line" says "$line"
  expect "$script without network builds nothing" not_called "cmake --"
  user=1000 works=yes
  run "$script"
  expect "$script uses sudo" called "sudo -n env"
  expect "$script installs what is missing, only that" called "install -y --no-install-recommends some-package other-package"
  expect "$script configures" called "cmake --preset release"
  run "$script"
  expect "$script installs nothing the second time" not_called "apt-get"
  expect "$script builds again" called "cmake --build"
done

run test.sh -R some
expect "test.sh exits as ctest does" exits 7
expect "test.sh hands its arguments on" called "-R some"

run quickstart.sh
expect "quickstart.sh succeeds" exits 0
expect "quickstart.sh trains the preset" called "pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml"
expect "a second quick start moves the first one's files aside" called "pretrain_gpt_tiny.yaml --overwrite"
expect "the highest checkpoint of this run writes text" called "generate --checkpoint ./output/checkpoint/step_00000003 "
expect "the text is shown" says "let there be light"
expect "no text is prepared" not_called "preprocess_data --input"

printf '  Call me\nIshmael. Some years ago\n' >"$scratch/home/my book.txt"
run quickstart.sh --text "my book.txt" --set training_config.training_iters=5
expect "--text succeeds" exits 0
expect "--text prepares the file" called "preprocess_data --input $scratch/home/my book.txt --output_prefix dataset/user_text/user --tokenizer_type sentencepiece --train_tokenizer --vocab_size 512 --grow_vocab"
expect "--text trains on it" called "--config_path examples/gpt/pretrain_gpt_tiny.yaml --overwrite --set dataset_config.data_path=dataset/user_text/user_text_document --set training_config.training_iters=5"
expect "--text prompts with its first words" called "--prompt Call me --max_new_tokens"
expect "--text evaluates" not_called "eval_interval"
vocab=4032
printf '\xEF\xBB\xBF\n\xE7\x84\xB6\xE5\x90\x8E\n' >"$scratch/home/my book.txt"
run quickstart.sh --text "my book.txt"
expect "a larger vocabulary goes to the model" called "--set model_config.vocab_size=4032"
expect "a byte-order mark is no prompt" called $'--prompt \xE7\x84\xB6\xE5\x90\x8E --max_new_tokens'
vocab=66
run quickstart.sh --text "my book.txt" --preset char
expect "--preset char takes characters" called "--tokenizer_type character --train_tokenizer"
expect "--preset char trains its preset" called "--config_path examples/gpt/pretrain_gpt_char.yaml --overwrite --set dataset_config.data_path"
expect "a smaller tokenizer leaves the model as it is" not_called "model_config.vocab_size"
run quickstart.sh --preset huge
expect "an unknown preset exits with 2" exits 2
expect "the presets are named" says "124M 13B"
expect "an unknown preset starts nothing" not_called cmake
run quickstart.sh --text
expect "--text without a file exits with 2" exits 2
run quickstart.sh --text missing.txt
expect "--text with a missing file exits with 2" exits 2
expect "the missing file is named" says missing.txt
expect "nothing was started" not_called cmake

stub "$programs/pretrain_gpt" 'exit 2'
run quickstart.sh
expect "the exit code of pretrain_gpt is kept" exits 2
expect "nothing is generated after a failure" not_called "generate --"

((failures == 0)) && echo "all as expected"
