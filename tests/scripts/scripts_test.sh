#!/usr/bin/env bash
# shellcheck disable=SC2016  # the bodies of stand-ins are expanded when they run
# Test `scripts`: quickstart.sh, test.sh and setup.sh against stand-ins of the programs that they
# call. Nothing is installed, configured or built.
set -euo pipefail
source_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT

# Every script says what it does, and does nothing else.
for script in aarch64 clean_pairs disk_faults fault_drill format layout_matrix llama_cpp plant_faults quickstart test tidy torture; do
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
echo test-package >"$scratch/clone/packages-test.txt"

stub() {  # stub NAME BODY: a program that records its call, then does BODY
  local path="$stubs/$1"
  [[ "$1" != */* ]] || path="$1"
  printf '#!/usr/bin/env bash\necho "%s $*" >>"%s"\n%s\n' "$(basename "$1")" "$calls" "$2" >"$path"
  chmod +x "$path"
}
# Installed: cmake, and whatever is listed in $scratch/installed.
stub dpkg-query 'for last; do :; done
  if [[ "$last" == cmake ]] || grep -qx -- "$last" "'"$scratch"'/installed"; then echo -n installed; fi'
builds='for i in {1..400}; do echo "[$i/400] Building CXX object file_$i"; done'
stub cmake "$builds"
stub ctest 'exit 7'
programs="$scratch/clone/build/release/examples/gpt"
stub "$programs/preprocess_data" 'echo "{\"vocab_size\": $vocab}" >dataset/user_text/user_text_document.tokenizer.json'
stub "$programs/generate" 'echo "let there be light"'
readonly trains='echo "train: Epoch:0, Step:1, Loss: 6.2"; mkdir -p output/checkpoint/step_00000009; touch -d yesterday output/checkpoint/step_00000009
  mkdir -p output/checkpoint/step_00000002 output/checkpoint/step_00000003
  sleep 0.05  # longer than a tick of file times
  touch output/checkpoint/step_00000003 output/checkpoint/step_00000002'
stub "$programs/pretrain_gpt" "$trains"

user=1000
works=yes
export vocab=512
failures=0
run() {  # run SCRIPT ARGUMENT...: sets code and out
  : >"$calls"
  stub id "echo $user"
  stub sudo '[[ "'"$works"'" == yes ]] || exit 1; [[ "$1" == -n ]] && shift; "$@"'
  stub apt-get '[[ "'"$works"'" == yes ]] || exit 100
    [[ "$*" != *install* ]] || printf "some-package\nother-package\ntest-package\n" >"'"$scratch"'/installed"'
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
says_line() { grep -qxF -- "$1" <<<"$out"; }
lacks() { [[ "$out" != *"$1"* ]]; }
within() { # within LINES TEXT
  local found
  found="$(grep -nF -m 1 -- "$2" <<<"$out" | cut -d: -f1)"
  [[ -n "$found" ]] && ((found <= $1))
}
follows() { # follows LATER EARLIER: of two calls
  [[ "$(tr '\n' ' ' <"$calls")" == *"$2"*"$1"* ]]
}
called() { [[ "$(<"$calls")" == *"$1"* ]]; }
not_called() { ! called "$1"; }

for script in quickstart.sh test.sh; do
  wanted="some-package other-package"
  [[ "$script" != test.sh ]] || wanted+=" test-package"
  line="apt-get update && apt-get install -y --no-install-recommends $wanted"
  : >"$scratch/installed"
  user=1000 works=no
  run "$script"
  expect "$script without rights exits with 2" exits 2
  expect "$script without rights prints the line" says_line "  $line"
  expect "$script without rights builds nothing" not_called "cmake --"
  user=0 works=no
  run "$script"
  expect "$script without network exits with 2" exits 2
  expect "$script without network prints the line" says_line "  $line"
  expect "$script without network builds nothing" not_called "cmake --"
  user=1000 works=yes
  run "$script"
  expect "$script uses sudo" called "sudo -n env"
  expect "$script installs what is missing, only that" called "install -y --no-install-recommends $wanted"$'\n'
  expect "$script configures" called "cmake --preset release"
  run "$script"
  expect "$script installs nothing the second time" not_called "apt-get"
  expect "$script builds again" called "cmake --build"
done

printf 'CMAKE_HOME_DIRECTORY:INTERNAL=%s\n' "$scratch/clone" >"$scratch/clone/build/release/CMakeCache.txt"
run quickstart.sh
expect "quickstart.sh leaves a build its CPU levels" not_called "TAPESTRY_CPU_LEVELS"
rm "$scratch/clone/build/release/CMakeCache.txt"
run quickstart.sh
expect "quickstart.sh compiles for this machine" called "TAPESTRY_CPU_LEVELS=native"
run test.sh -R some
expect "test.sh compiles for every processor" called "TAPESTRY_CPU_LEVELS=all"
expect "test.sh exits as ctest does" exits 7
expect "test.sh hands its arguments on" called "-R some"

run quickstart.sh
expect "quickstart.sh succeeds" exits 0
expect "quickstart.sh trains the preset" called "pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml"
expect "a second quick start moves the first one's files aside" called "pretrain_gpt_tiny.yaml --overwrite"
expect "the highest checkpoint of this run writes text" called "generate --checkpoint ./output/checkpoint/step_00000003 "
expect "the text is shown" says "let there be light"
expect "no text is prepared" not_called "preprocess_data --input"
# The first hour: what will be done, a line for each phase, the loss soon, the rest in the log.
expect "the log is named" says "all output is in $scratch/clone/build/quickstart.log"
expect "what is trained is named" says "train examples/gpt/pretrain_gpt_tiny.yaml in ./output"
expect "a build that takes time and disk is announced" says "minutes on idle cores, 1 GB of disk"
expect "a phase is a line" says "Building the training program: done, "
expect "what a build prints is not shown" lacks "Building CXX object"
expect "what a build prints is in the log" grep -qF "[400/400] Building CXX object" "$scratch/clone/build/quickstart.log"
expect "the first loss is not far down" within 15 "Step:1, Loss:"
expect "the other programs are built" called "--target programs"
expect "they are built after the text" follows "--target programs" "generate --checkpoint"
expect "the PATH is told" says "export PATH=$programs:\"\$PATH\""
expect "the next command has this run's checkpoint" says "  generate --checkpoint ./output/checkpoint/step_00000003 --prompt"
expect "own texts are a next command" says "  bash scripts/quickstart.sh --text my_book.txt"
expect "tuning is a next command" says "  finetune_gpt --from_hf"

touch "$scratch/clone/build/release/build.ninja"
run quickstart.sh
expect "a second build is announced as such" says "what has changed there"

# On a terminal one line moves for each phase.
stub cmake "$builds; sleep 1.5"
code=0
out="$(cd "$scratch/home" && PATH="$stubs:$PATH" script -qec "bash '$scratch/clone/scripts/quickstart.sh'" /dev/null </dev/null 2>&1)" || code=$?
expect "it succeeds on a terminal" exits 0
expect "the moving line counts" says "Building the training program, 0:0"
expect "the moving line says where ninja is" says ": 400 of 400"
expect "it is overwritten" says $'\r\e[K'
expect "few lines are left of it" within 15 "Step:1, Loss:"
stub cmake "$builds"

# A failure shows what the log says of it.
stub cmake '[[ "$*" != *--build* ]] || { '"$builds"'
  echo "FAILED: some_object.o"; echo "some_file.cpp:7: error: no such thing"; echo "ninja: build stopped"; exit 3; }'
run quickstart.sh
expect "the exit code of a build is kept" exits 3
expect "the failed phase is named" says "Building the training program failed with exit code 3"
expect "the compiler's words are shown" says "some_file.cpp:7: error: no such thing"
expect "what went well is not" lacks "Building CXX object file_399"
expect "nothing is trained after a failure" not_called "pretrain_gpt --config_path"
stub cmake '[[ "$*" != *programs* ]] || exit 4'
run quickstart.sh
expect "a failure of the other programs is one" exits 1
expect "how to build them is said" says "cmake --build $scratch/clone/build/release --target programs"
expect "the text is there all the same" says "let there be light"
stub cmake "$builds"

# Any name of a folder.
odd=$'out put\n$HOME "x"'
stub "$programs/pretrain_gpt" 'echo "$*" >>words; for last; do :; done; odd="${last#*output_dir=}"
  sleep 0.05; mkdir -p "$odd/checkpoint/step_00000005"'
run quickstart.sh --set "training_config.output_dir=$odd"
expect "an odd output folder succeeds" exits 0
expect "its checkpoint is found" called "generate --checkpoint $odd/checkpoint/step_00000005 "
expect "its name is quoted for a shell" says "generate --checkpoint $(printf %q "$odd/checkpoint/step_00000005") --prompt"
stub "$programs/pretrain_gpt" "$trains"
mkdir -p "$scratch/home/texts/"$'a\nb $x'
printf 'Once upon\n' >"$scratch/home/texts/"$'a\nb $x/one.txt'
printf 'a time\n' >"$scratch/home/texts/two.md"
touch "$scratch/home/texts/picture.png"
run quickstart.sh --text texts
expect "a folder of texts succeeds" exits 0
expect "its texts are prepared" called "--input $(cd "$scratch/home" && pwd -P)/texts --output_prefix"
mkdir "$scratch/home/empty"
run quickstart.sh --text empty
expect "a folder without texts exits with 2" exits 2
expect "the folder without texts is named" says "the folder empty has no"
broken="$scratch/"$'line\nbreak'
cp -r "$scratch/clone" "$broken"
code=0
out="$(cd "$scratch/home" && PATH="$stubs:$PATH" bash "$broken/scripts/quickstart.sh" 2>&1)" || code=$?
expect "a clone whose name has a line break exits with 2" exits 2
expect "that is said" says "has a line break, which CMake and ninja cannot take"

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
