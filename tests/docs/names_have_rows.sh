#!/usr/bin/env bash
# Test `mindformers_names`: each name of a list stands, `as code`, in a row of a table of the page.
#
#   names_have_rows.sh NAMES DOCUMENT
#
# NAMES has words; lines that begin with # are remarks.
set -euo pipefail
names="$1" document="$2"

# missing DOCUMENT: the names without a row, one a line.
missing() {
  awk '
    NR == FNR {
      if ($0 !~ /^\|/) next
      count = split($0, parts, "`")
      for (i = 2; i <= count; i += 2) {
        words = split(parts[i], word, /[^A-Za-z0-9_.]+/)
        for (j = 1; j <= words; ++j) shown[word[j]] = 1
      }
      next
    }
    /^#/ { next }
    { for (i = 1; i <= NF; ++i) if (!($i in shown)) print $i }' "$1" "$names"
}

lost="$(missing "$document")"
[[ -z "$lost" ]] || { echo "$document has no row for:"; echo "$lost"; exit 1; }
(($(grep -v '^#' "$names" | wc -w) > 150)) || { echo "$names is too short"; exit 1; }

# The check itself notices a row that is gone.
cut=$(mktemp)
trap 'rm -f "$cut"' EXIT
grep -v 'ParallelLMLogits' "$document" >"$cut"
missing "$cut" | grep -qx ParallelLMLogits || { echo "a missing row was not noticed"; exit 1; }
