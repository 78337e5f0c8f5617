#!/usr/bin/env bash
# Tests `PAGE_matches_docs`: every ```cpp block of a page is a run of lines of the file that is
# compiled and run, line by line (indentation aside).
#
#   code_matches.sh DOCUMENT FILE
set -euo pipefail
document="$1" file="$2"

# block N: the N-th ```cpp block of the text on standard input.
block() {
  awk -v wanted="$1" '
    $0 == "```cpp" { ++blocks; inside = 1; next }
    $0 == "```" { inside = 0 }
    inside && blocks == wanted'
}
plain() { sed 's/^ *//; s/ *$//'; }
part() { # part TEXT N
  awk 'NR == FNR { text = text $0 "\n"; next } { block = block $0 "\n" }
    END { exit block == "" || !index("\n" text, "\n" block) }' <(plain <"$file") \
    <(block "$2" <"$1" | plain)
}

blocks=$(grep -c '^```cpp$' "$document")
for ((i = 1; i <= blocks; ++i)); do
  part "$document" "$i" || { echo "$document: cpp block $i is not in $file"; exit 1; }
done

# The check itself notices a changed line.
changed=$(mktemp)
trap 'rm -f "$changed"' EXIT
awk '{ print } $0 == "```cpp" { getline; print $0 " changed" }' "$document" >"$changed"
for ((i = 1; i <= blocks; ++i)); do
  ! part "$changed" "$i" || { echo "a change in block $i was not noticed"; exit 1; }
done
