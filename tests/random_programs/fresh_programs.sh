#!/usr/bin/env bash
# Random programs made now, by the PyTorch of this machine, and run by PROGRAM, the test of random
# programs, which may stand behind an emulator:
#
#   fresh_programs.sh SCRATCH PROGRAM...
#
# Exit code 77, which ctest shows as skipped, where there is no PyTorch. The interpreter of Python is
# $TAPESTRY_TORCH_PYTHON, or the first of these that has PyTorch.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
scratch="$1"
shift

for python in "${TAPESTRY_TORCH_PYTHON:-python3}" /usr/bin/python3; do
  if "$python" -c 'import torch' 2> /dev/null; then
    mkdir -p "$scratch"
    "$python" "$here/generate.py" "$scratch/programs.txt" --seed 1000000 --count 1000
    TAPESTRY_RANDOM_PROGRAMS="$scratch/programs.txt" exec "$@"
  fi
done
echo "skipped: no Python with PyTorch (apt-get install python3-torch)"
exit 77
