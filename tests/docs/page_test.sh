#!/usr/bin/env bash
# Runs the commands that a page of the documentation shows, as they stand there, in a folder that
# looks like a clone in which everything is built.
#
#   page_test.sh SOURCE_DIR BINARY_DIR SCENARIO         all of a page that can be run
#   page_test.sh SOURCE_DIR BINARY_DIR SCENARIO ENTRY   what is checked in place of one that cannot;
#                                                       exits with 77: skipped
#   page_test.sh SOURCE_DIR BINARY_DIR --all-pages      every page with commands has a scenario
#
# A scenario (pages/*.sh) names its page and gives each of its commands a line, in the order in
# which they are run: see "What scenarios say" below. A command of the page without such a line is an
# error, and so is a line whose command the page does not show.
#
# Commands are: what stands in a fenced block `bash`; an indented block that begins with one of the
# programs below; and what stands `in a line` and begins with one of them, followed by more.
# Programs are the real ones, behind wrappers that append what makes a run small (`small`).
set -uo pipefail
source_dir="$(cd "$1" && pwd)" binary_dir="$(cd "$2" && pwd)" scenario="$3" entry="${4:-}"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

# commands_of FILE: a line "NUMBER COMMAND" for each, continuation lines joined, comments taken off.
commands_of() {
  awk '
    BEGIN {
      assignment = "([A-Z_][A-Z_0-9]*=[^ ]* )*"
      ours = "pretrain_gpt|pretrain_gpt\\.sh|finetune_gpt|evaluate|generate|export|preprocess_data|own_model|own_data|" \
             "config_doc|compare_checkpoints|accuracy|tour|layout_matrix|[a-z]+_bench|test\\.[a-z_.]+|[a-z_0-9]+\\.(py|sh)|\\.ci/run"
      others = "bash|sh|cmake|ctest|mpirun|srun|apt-get|sudo|python3?|git|make|ninja|mkdir|cd|export|bible|" \
               "cp|mv|rm|ls|cat|head|tail|kill|env|nohup|tmux|ssh|scp|curl|wget|docker|pip3?"
      program = "^" assignment "((([A-Za-z0-9_.-]*/)*(" ours "))|" others ")"
    }
    function command(line, text) {
      sub(/[ \t]+# .*$/, "", text)
      gsub(/^[ \t]+|[ \t]+$/, "", text)
      if (text != "" && text !~ /^#/) print line, text
    }
    function wrong(what) {
      print FILENAME ":" FNR ": " what > "/dev/stderr"
      bad = 1
    }
    function inline_commands(   parts, count, i) {
      count = split(paragraph, parts, "`")
      for (i = 2; i <= count; i += 2) {
        gsub(/[ \n]+/, " ", parts[i])
        # What has optional words, or three dots, is a form of a command.
        if (parts[i] ~ program " " && parts[i] !~ /\.\.\.|\[[A-Z]/) command(paragraph_line, parts[i])
      }
      paragraph = ""
    }
    /^```/ {
      inline_commands()
      if (fence != "") { fence = ""; next }
      fence = substr($0, 4)
      if (fence == "") { fence = "none" }
      if (fence !~ /^(bash|cpp|python|text|yaml|cmake)$/)
        wrong("a fenced block must say whether it is bash, cpp, python, text, yaml or cmake")
      next
    }
    fence == "bash" {
      if (sub(/\\$/, "")) { joined = joined $0; next }
      text = joined $0
      joined = ""
      gsub(/ +/, " ", text)
      command(FNR, text)
      next
    }
    fence != "" { next }
    /^    / {
      inline_commands()
      text = substr($0, 5)
      if (!indented) shell = text ~ program " "
      indented = 1
      if (shell) command(FNR, text)
      next
    }
    { indented = 0 }
    /^$/ { inline_commands(); next }
    {
      if (paragraph == "") paragraph_line = FNR
      paragraph = paragraph $0 "\n"
    }
    END {
      inline_commands()
      if (fence != "") wrong("a fenced block does not end")
      exit bad
    }' "$1" | awk '{ text = $0; sub(/^[0-9]+ /, "", text); if (!seen[text]++) print }'
}

if [[ "$scenario" == --all-pages ]]; then
  failures=0
  cd "$source_dir" || exit 1
  for page in *.md docs/*.md bench/*.md tests/*/*.md; do
    # The changelog names commands that have changed; the pages show them.
    [[ -f "$page" && "$page" != CHANGELOG.md ]] || continue
    found="$(commands_of "$page")" || failures=$((failures + 1))
    if [[ -n "$found" ]] && ! grep -qxF "page $page" "$here"/pages/*.sh; then
      printf '%s has commands, but no scenario in tests/docs/pages:\n%s\n' "$page" "$found" >&2
      failures=$((failures + 1))
    fi
  done
  exit $((failures > 0))
fi

scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
clone="$scratch/clone" out="$scratch/out.txt"
export OMPI_MCA_orte_tmpdir_base="$scratch/mpirun" # another test's mpirun removes what they share
folder="$clone"
failures=0
skipped=""         # why nothing of this page can be run here
declare -A line=() ticked=() # of each command: where it stands, and whether it has come up

# ---- The clone, and the programs in it.

# wrap PATH PROGRAM [PATTERN]: a script that runs the program, where its options match the pattern
# with those that `small` gives: in place of an option that has the same name (--set adds).
wrap() {
  local name="${1##*/}"
  mkdir -p "$(dirname "$1")"
  cat >"$1" <<TEXT
#!/usr/bin/env bash
words=() kept=()
[[ " \$* " != ${3:-*} ]] || read -ra words <<<"\${TAPESTRY_TEST_SMALL_${name%.*}:-}"
while ((\$# > 0)); do
  if [[ "\$1" == --?* && "\$1" != --set && " \${words[*]} " == *" \$1 "* ]]; then
    shift  # and its value
  else
    kept+=("\$1")
  fi
  shift
done
exec '$2' "\${kept[@]}" "\${words[@]}"
TEXT
  chmod +x "$1"
}

make_clone() {
  local path name build="$clone/build/release"
  mkdir -p "$build/tests"
  # Copies, not links: a command may write where they lead. Without what git ignores, if it knows.
  (cd "$source_dir" && git ls-files -z --cached --others --exclude-standard |
    tar --create --null --files-from=- --ignore-failed-read | tar --extract --directory "$clone") \
    2>/dev/null || cp -r "$source_dir"/* "$clone/"
  for path in "$clone"/bench/*.py; do
    [[ -x "$path" ]] || continue  # a program, not what programs import
    name="${path##*/}"
    mv "$path" "${path%"$name"}_$name"
    wrap "$path" "${path%"$name"}_$name"
  done
  for path in "$binary_dir"/{examples/gpt,examples/tour,bench,tests}/*; do
    [[ -f "$path" && -x "$path" ]] || continue
    case "$path" in
      */examples/gpt/finetune_gpt) wrap "$build/${path#"$binary_dir"/}" "$path" '*" --from_hf "*' ;;
      */examples/gpt/*) wrap "$build/${path#"$binary_dir"/}" "$path" '*" --config_path "*' ;;
      *) wrap "$build/${path#"$binary_dir"/}" "$path" ;;
    esac
  done
  wrap "$scratch/programs/cmake" "$(command -v cmake)" '" --build "*'
  wrap "$scratch/programs/ctest" "$(command -v ctest)"
  stand_in dpkg-query 'echo -n installed'
  # The launcher asks which MPI a program is linked with: the program, not the script that wraps it.
  # shellcheck disable=SC2016  # expanded when it runs
  stand_in ldd 'for file; do :; done
[[ "$(head -c 2 "$file" | tr -d "\0")" != "#!" ]] || file="$(sed -n "s/^exec '"'\\(.*\\)'"' \"\${kept.*/\\1/p" "$file")"
exec '"$(command -v ldd)"' "$file"'
  if grep -q '^TAPESTRY_MPI:.*=mpich' "$binary_dir/CMakeCache.txt"; then  # whose mpirun the pages mean
    stand_in mpirun "exec '$binary_dir/tests/mpich/mpirun' \"\$@\""
  fi
  PATH="$scratch/programs:$build/examples/gpt:$build/bench:$clone/examples/gpt:$clone/bench:$PATH"
}

# stand_in NAME BODY: a program for what a test must not do.
stand_in() {
  printf '#!/usr/bin/env bash\n%s\n' "$2" >"$scratch/programs/$1"
  chmod +x "$scratch/programs/$1"
}

# ---- What scenarios say.

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

page() { # page FILE: the page whose commands follow
  page="$1"
  local number command found
  found="$(commands_of "$source_dir/$page")" || fail "$page cannot be read"
  while read -r number command; do
    [[ -z "$command" ]] || line["$command"]="$number"
  done <<<"$found"
  ((${#line[@]} > 0)) || fail "$page has no commands"
}

# needs REASON CONDITION...: where the condition does not hold, nothing of the page is run.
needs() {
  "${@:2}" >/dev/null 2>&1 || skipped="${skipped:-$1}"
}
built() { # built PROGRAM...: below the build folder
  local program
  for program; do [[ -x "$binary_dir/$program" ]] || return 1; done
}

# small PROGRAM OPTION...: what is appended to the program's options from here on; of programs of
# examples/gpt where they have a --config_path (finetune_gpt: --from_hf), of cmake to --build.
small() {
  export "TAPESTRY_TEST_SMALL_$1=${*:2}"
}

# in_folder PATH: of the clone, in which the next commands are run; made if it is not there.
in_folder() {
  folder="$clone/$1"
  mkdir -p "$folder"
}

# prepare COMMAND...: what a reader has to have for the commands that follow, or would do besides.
prepare() {
  [[ -z "$skipped" && -z "$entry" ]] || return 0
  (cd "$folder" && "$@") >"$out" 2>&1 || fail "$page: preparing, $*:"$'\n'"$(tail -n 20 "$out")"
}

shown() { # shown COMMAND: ticks off a command of the page
  local key="$1"
  at="$page:${line["$key"]:-}"
  [[ -n "${line["$key"]:-}" ]] || {
    fail "$page does not show: $1"
    return 1
  }
  [[ -z "${ticked["$key"]:-}" ]] || fail "${scenario##*/} has two lines for: $1"
  ticked["$key"]=yes
}

# runs COMMAND [NAME=VALUE]...: runs a command of the page, in which VALUEs stand for NAMEs.
runs() {
  local command="$1" pair
  shown "$1" || return 0
  for pair in "${@:2}"; do
    [[ "$command" == *"${pair%%=*}"* ]] || fail "$at: there is no ${pair%%=*} in $command"
    command="${command//"${pair%%=*}"/"${pair#*=}"}"
  done
  [[ -z "$skipped" && -z "$entry" ]] || return 0
  local code=0 start=$SECONDS
  (cd "$folder" && exec bash -euo pipefail -c "$command") >"$out" 2>&1 </dev/null || code=$?
  ((code == 0 || code == ${accepted:-0})) || fail "$at: $command"$'\n'"exit code $code: $(tail -n 30 "$out")"
  echo "$at: $command ($((SECONDS - start)) s)"
}

runs_or() { # runs_or CODE COMMAND [NAME=VALUE]...: the same where that exit code is right, too
  local accepted="$1"
  runs "${@:2}"
}

# What the last command has printed, or left in the folder.
says() {
  [[ -z "$skipped" && -z "$entry" ]] || return 0
  grep -qF -- "$1" "$out" || fail "$at: '$1' is not in: $(tail -n 30 "$out")"
}
leaves() {
  [[ -z "$skipped" && -z "$entry" ]] || return 0
  local file
  for file; do [[ -e "$folder/$file" ]] || fail "$at: leaves no $file"; done
}

# sample_texts FILE...: plain texts in paragraphs that a small model can learn.
sample_texts() {
  local file i who=("the king" "a servant" "the prophet" "his brother")
  local did=("went up to" "looked upon" "departed from") where=("the city" "the house" "the river")
  for file; do
    for ((i = 0; i < 400; ++i)); do
      echo "And ${who[i * 7 % 4]} ${did[i * 5 % 3]} ${where[i / 3 % 3]}; and the ${#file} days were $i."
      ((i % 5 < 4)) || echo
    done >"$file"
  done
}

# with_block N YAML FILE: YAML with the sections of the page's Nth block `yaml` in place of its own.
with_block() {
  awk -v wanted="$1" '/^```yaml$/ { inside = ++count == wanted; next }
    /^```/ { inside = 0 }
    inside' "$source_dir/$page" >"$3"
  [[ -s "$3" ]] || {
    echo "$page has no $1 blocks of yaml"
    return 1
  }
  awk '/^[a-z_]+:/ { section = $0; sub(/:.*/, "", section) }
    NR == FNR { given[section] = 1; next }
    !(section in given)' "$3" "$2" >"$3.rest"
  cat "$3.rest" >>"$3"
}

# no_command TEXT: begins with a program's name, but is a message or a part of a command.
no_command() { shown "$1"; }

# unrunnable ENTRY COMMAND REASON CHECK...: the command cannot be run by a test. CHECK is a command
# that sees to as much of it as can be seen to; the ctest entry docs.PAGE.ENTRY runs it, and is shown
# as skipped.
unrunnable() {
  shown "$2" || return 0
  if [[ "$entry" == "$1" && -z "$skipped" ]]; then
    (cd "$folder" && "${@:4}") >"$out" 2>&1 || {
      fail "$at: $2"$'\n'"${*:4}: $(tail -n 30 "$out")"
      exit 1
    }
    echo "skipped: $at: $2: $3"
    exit 77
  fi
}

# has_options HELP... -- OPTION...: a command whose output names the options.
has_options() {
  local help=() text option
  while [[ "$1" != -- ]]; do
    help+=("$1")
    shift
  done
  shift
  text="$("${help[@]}" 2>&1)" || return
  for option; do
    grep -qE -- "(^|[^a-z_-])$option([^a-z_-]|$)" <<<"$text" || {
      echo "${help[*]} does not know $option: $text"
      return 1
    }
  done
}

# known_packages NAME...: apt knows them, where it has lists of what there is.
known_packages() {
  local name known
  known="$(apt-cache policy libc6 "$@" 2>/dev/null)"
  [[ "$known" == libc6:* ]] || return 0
  for name; do
    grep -qxF "$name:" <<<"$known" || {
      echo "apt knows no package $name"
      return 1
    }
  done
}

# ---- The page.

export OMP_NUM_THREADS=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
unset TAPESTRY_CPU_LEVEL
tiny="--set training_config.training_iters=2 --set training_config.eval_iters=1
  --set dataset_config.batch_size=2 --set model_config.num_layers=2 --set model_config.hidden_size=32
  --set model_config.ffn_hidden_size=64 --set model_config.num_attention_heads=2
  --set model_config.seq_length=32"
tiny="${tiny//$'\n'/ }"
small pretrain_gpt "$tiny"
small cmake -- -n  # what ninja would do
make_clone
# shellcheck source-path=SCRIPTDIR/pages source=/dev/null
source "$scenario"

for command in "${!line[@]}"; do
  [[ -n "${ticked["$command"]:-}" ]] ||
    fail "$page:${line["$command"]}: ${scenario##*/} has no line for: $command"
done
if [[ -n "$entry" && $failures == 0 && -z "$skipped" ]]; then
  fail "${scenario##*/} has no entry $entry"
fi
((failures == 0)) || exit 1
if [[ -n "$skipped" ]]; then
  echo "skipped: $skipped"
  exit 77
fi
