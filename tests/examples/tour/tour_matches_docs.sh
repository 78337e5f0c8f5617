#!/usr/bin/env bash
# Test `tour_matches_docs`: every ```cpp block of docs/tour.md is in examples/tour/tour.cpp, line by
# line (indentation aside), and every ```text block is in what the program prints.
#
#   tour_matches_docs.sh DOCUMENT SOURCE PROGRAM SCRATCH
set -euo pipefail
document="$1" source="$2" program="$3" scratch="$4"
mkdir -p "$scratch"
"$program" "$scratch" >"$scratch/output.txt"

# contains KIND FILE INDENT: the blocks of a kind are runs of lines of the file.
contains() {
  awk -v kind="$1" -v indent="$3" '
    function plain(line) {
      if (indent == "any") sub(/^ +/, "", line)
      sub(/[ \r]+$/, "", line)
      return line "\n"
    }
    NR == FNR { text = text plain($0); next }
    !inside && $0 == "```" kind { inside = 1; block = "\n"; start = FNR; next }
    inside && $0 == "```" {
      inside = 0
      ++blocks
      if (block == "\n" || !index("\n" text, block)) {
        printf "%s:%d: this %s block is not in %s\n%s", FILENAME, start, kind, ARGV[1], block
        bad = 1
      }
      next
    }
    inside { block = block plain($0) }
    END {
      if (inside) { print "a block of " FILENAME " does not end"; bad = 1 }
      if (!blocks) { print FILENAME " has no " kind " block"; bad = 1 }
      exit bad
    }' "$2" "$document"
}
contains cpp "$source" any
contains text "$scratch/output.txt" kept

# The check itself notices a changed line.
sed '/^```cpp$/{n;s/$/ changed/}' "$document" >"$scratch/changed.md"
if (document="$scratch/changed.md" && contains cpp "$source" any >/dev/null); then
  echo "a changed block was not noticed"
  exit 1
fi
