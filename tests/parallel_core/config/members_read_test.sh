#!/usr/bin/env bash
# Every member of the configuration's structs is read by some code of the product: a key without
# effect belongs into the table of schema/keys_without_effect.cpp, which needs no member.
#
#   members_read_test.sh ROOT
set -euo pipefail
cd "$1"

# The members of a header's structs, one a line.
members_of() {
  sed 's|//.*||' "$1" | awk '
    /^struct .*\{/ { inside = 1; next }
    /^\}/ { inside = 0 }
    inside { text = text $0
             if (text !~ /;[ \t]*$/) next
             line = text; text = ""
             if (line ~ /\(|operator|using |enum /) next
             sub(/[ \t]*(=.*|\{.*)?;[ \t]*$/, "", line)
             if (match(line, /[a-z_0-9]+$/)) print substr(line, RSTART) }'
}

# Names that stand behind a dot, an arrow or two colons in the product, without comments, texts, the
# structs themselves and the rows that only bind them.
read_names() {
  find parallel_core diagnosis interop examples text optim nn -name '*.h' -o -name '*.cpp' |
    grep -v -e '^parallel_core/config/config\.h$' -e '^parallel_core/config/schema/schema_' |
    xargs sed 's|"\([^"\\]\|\\.\)*"||g; s|//.*||' |
    grep -oE '(\.|->|::)[a-z_0-9]+' | sed -E 's/^(\.|->|::)//' | sort -u
}
names=$(read_names)

unread_of() { members_of "$1" | sort -u | comm -23 - <(echo "$names"); }

count=$(members_of parallel_core/config/config.h | wc -l)
if [ "$count" -lt 300 ]; then
  echo "only $count members are found in config.h: this test no longer understands it"
  exit 1
fi
planted=$(unread_of <(sed 's/^struct TrainingConfig {/&\n  bool read_by_no_code_at_all = false;/' \
  parallel_core/config/config.h))
if ! grep -q read_by_no_code_at_all <<< "$planted"; then
  echo "a member that no code reads was not noticed"
  exit 1
fi
unread=$(unread_of parallel_core/config/config.h)
if [ -n "$unread" ]; then
  echo "no code reads these members of config.h; move their keys to keys_without_effect.cpp:"
  echo "$unread"
  exit 1
fi
echo "$count members, all of them read"
