#!/usr/bin/env bash
# lintian_test.sh SOURCE OUT: Debian's checker has nothing to say about the packages in OUT, and each of
# its tags that they override has its reason above it.
set -euo pipefail
source_root="$1" out="$2"
command -v lintian >/dev/null || {
  echo "skipped: lintian is missing: apt-get install lintian" >&2
  exit 77
}
shopt -s nullglob
packages=("$out"/*.deb)
((${#packages[@]} == 2)) || {
  echo "FAILED: two packages are expected in $out, there are: ${packages[*]}" >&2
  exit 1
}
options=(--tag-display-limit 0 --fail-on 'error,warning')
((EUID != 0)) || options+=(--allow-root)
LC_ALL=C.UTF-8 lintian "${options[@]}" "${packages[@]}" | tee "$out/lintian.log"
if grep -q '^[EW]:' "$out/lintian.log"; then
  echo "FAILED: lintian finds something" >&2
  exit 1
fi
for overrides in "$source_root"/packaging/debian/*.lintian-overrides; do
  awk -v file="$overrides" '/^[^#]/ && !comment { print file ": without its reason: " $0; bad = 1 }
    { comment = /^#/ || (comment && /^[^#]/ ? 0 : /^#/) } END { exit bad }' "$overrides" >&2
done
