#!/usr/bin/env bash
# shellcheck disable=SC2016  # sed scripts
# driver_test.sh BINARY_DIR: page_test.sh finds what is wrong with a page or its scenario.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
binary_dir="$1"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
failures=0

# A tree of sources with one page.
mkdir -p "$scratch/source/bench"
cat >"$scratch/source/page.md" <<'TEXT'
Text, with `mkdir inline`, `mkdir` alone and `bash [FILE]...`.

```bash
mkdir one                 # a comment
# another
mkdir -p \
  two
```

    mkdir indented

    some output of it

```text
mkdir output
```
TEXT
cat >"$scratch/good.sh" <<'TEXT'
page page.md
runs 'mkdir one' one=first
leaves first
runs 'mkdir -p two'
runs_or 3 'mkdir indented'
unrunnable inline 'mkdir inline' 'not wanted' has_options mkdir --help -- --parents
TEXT

# expect CODE TEXT [ENTRY]: of the scenario good.sh, changed by the sed script in $change.
change=''
expect() {
  local code=0 output
  sed "$change" "$scratch/good.sh" >"$scratch/scenario.sh"
  output="$(bash "$here/page_test.sh" "$scratch/source" "$binary_dir" "$scratch/scenario.sh" \
    ${3:+"$3"} 2>&1)" || code=$?
  if [[ "$code" != "$1" || "$output" != *"$2"* ]]; then
    printf 'FAILED: %s: exit code %s, not %s with "%s":\n%s\n' "$change" "$code" "$1" "$2" "$output"
    failures=$((failures + 1))
  fi
}

expect 0 'page.md:4: mkdir first'
expect 77 'skipped: page.md:1: mkdir inline: not wanted' inline
change='/two/d' expect 1 'page.md:7: scenario.sh has no line for: mkdir -p two'
change='/inline/d' expect 1 'page.md:1: scenario.sh has no line for: mkdir inline'
change='/indented/d' expect 1 'page.md:10: scenario.sh has no line for: mkdir indented'
change='$a runs "mkdir output"' expect 1 'page.md does not show: mkdir output'
change='$a runs "mkdir one"' expect 1 'scenario.sh has two lines for: mkdir one'
change='s/one=first/one=no\/first/' expect 1 'page.md:4: mkdir no/first'
change='s/one=first/other=first/' expect 1 'there is no other in mkdir one'
change='s/leaves first/leaves second/' expect 1 'leaves no second'
change='s/leaves first/says first/' expect 1 "'first' is not in"
change='2i prepare false' expect 1 'preparing, false'
change='s/--parents/--grandparents/' expect 1 'does not know --grandparents' inline
change='' expect 1 'has no entry other' other
change='2i needs "a thing" false' expect 77 'skipped: a thing'
change='2i needs "a thing" false
/two/d' expect 1 'has no line for: mkdir -p two'

# A page without a scenario, a block that does not say what it is.
all_pages() {
  local code=0 output
  output="$(bash "$here/page_test.sh" "$scratch/source" "$binary_dir" --all-pages 2>&1)" || code=$?
  if [[ "$code" == 0 || "$output" != *"$1"* ]]; then
    printf 'FAILED: all pages: exit code %s, without "%s":\n%s\n' "$code" "$1" "$output"
    failures=$((failures + 1))
  fi
}
all_pages 'page.md has commands, but no scenario'
sed -i 's/^```text/```/' "$scratch/source/page.md"
all_pages 'page.md:14: a fenced block must say'

((failures == 0)) && echo "all as expected"
