#!/usr/bin/env bash
# Plants fifty faults in small trainings and looks for them as pretrain_gpt --find_fault does, once
# more in bfloat16, and makes more than a hundred comparisons in which nothing is wrong. Prints what
# was named, and how far below their bounds the clean comparisons stay. With TAPESTRY_GOLDEN_MODELS,
# a folder of stored trainings (docs/replay.md), these are compared as well. Builds what it needs in
# build/release; exit code 1 if a fault is not found in float32 or a clean comparison raises an
# alarm.
set -euo pipefail
if [[ "${1:-}" == -h || "${1:-}" == --help ]]; then  # what stands above
  sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"
  exit 0
fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."

[ -e build/release/build.ninja ] || [ -e build/release/Makefile ] || cmake --preset release >/dev/null
cmake --build build/release --target fault_drill >/dev/null
# Without what the reference runs log.
build/release/tests/fault_drill --all "$@" | sed '/^[0-9-]* [0-9:.]* info /d'
