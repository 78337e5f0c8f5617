#!/usr/bin/env bash
# Checks that the tracked C++ files are formatted; --fix formats them. Needs clang-format 14.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mode=(--dry-run --Werror)
case "${1:-}" in
  "") ;;
  --fix) mode=(-i) ;;
  -h | --help)
    echo "Usage: scripts/format.sh [--fix]: checks the format of the tracked C++ files, or mends it"
    exit 0
    ;;
  *)
    echo "Usage: scripts/format.sh [--fix]" >&2
    exit 2
    ;;
esac
command -v clang-format >/dev/null || {
  echo "format.sh: clang-format is missing: apt-get install clang-format" >&2
  exit 2
}
git ls-files -z --cached --others --exclude-standard '*.h' '*.cpp' |
  xargs -0 -r -n 50 clang-format "${mode[@]}"
