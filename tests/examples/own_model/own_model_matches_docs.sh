#!/usr/bin/env bash
# Test `own_model_matches_docs`: the first ```cpp block of docs/own_model.md is the whole program,
# which has at most 100 lines; every other one is in the test that runs it, line by line
# (indentation aside).
#
#   own_model_matches_docs.sh DOCUMENT PROGRAM TEST
set -euo pipefail
document="$1" program="$2" test="$3"

# block N: the N-th ```cpp block of the text on standard input.
block() {
  awk -v wanted="$1" '
    $0 == "```cpp" { ++blocks; inside = 1; next }
    $0 == "```" { inside = 0 }
    inside && blocks == wanted'
}
plain() { sed 's/^ *//; s/ *$//'; }
# whole TEXT: it shows the program.
whole() { diff <(block 1 <"$1") "$program"; }
# part TEXT N: its N-th block is a run of lines of the test.
part() {
  awk 'NR == FNR { text = text $0 "\n"; next } { block = block $0 "\n" }
    END { exit block == "" || !index("\n" text, "\n" block) }' <(plain <"$test") \
    <(block "$2" <"$1" | plain)
}

whole "$document"
lines=$(wc -l <"$program")
((lines <= 100)) || { echo "$program has $lines lines"; exit 1; }
blocks=$(grep -c '^```cpp$' "$document")
((blocks >= 2)) || { echo "$document has no second block"; exit 1; }
for ((i = 2; i <= blocks; ++i)); do
  part "$document" "$i" || { echo "$document: cpp block $i is not in $test"; exit 1; }
done

# The checks themselves notice a changed line.
changed=$(mktemp)
trap 'rm -f "$changed"' EXIT
awk '{ print } $0 == "```cpp" { getline; print $0 " changed" }' "$document" >"$changed"
if whole "$changed" >/dev/null || part "$changed" 2; then
  echo "a changed block was not noticed"
  exit 1
fi
