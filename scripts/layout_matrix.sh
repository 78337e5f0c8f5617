#!/usr/bin/env bash
# Compares every parallel layout of the table in tests/parallel_core/layouts with one process: 20
# steps from one checkpoint, each layout twice. Arguments are words that a layout's name must hold,
# for example "llama zero=z3". Builds what it needs in build/release; exit code 1 if one differs.
set -euo pipefail
if [[ "${1:-}" == -h || "${1:-}" == --help ]]; then  # what stands above
  sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"
  exit 0
fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."

[ -e build/release/build.ninja ] || [ -e build/release/Makefile ] || cmake --preset release >/dev/null
cmake --build build/release --target layout_matrix >/dev/null
# Ranks are threads, often more than there are cores: they must not spin while they wait.
exec build/release/tests/layout_matrix "$@"
