#!/usr/bin/env bash
# Random programs made now, by the PyTorch of this machine: fresh_programs.sh PROGRAM SCRATCH [SEED [COUNT]]
# Exit code 77, which ctest shows as skipped, where there is no PyTorch. The interpreter of Python is
# $TAPESTRY_TORCH_PYTHON, or the first of these that has PyTorch.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
program="$1" scratch="$2" seed="${3:-1000000}" count="${4:-1000}"

for python in "${TAPESTRY_TORCH_PYTHON:-python3}" /usr/bin/python3; do
  if "$python" -c 'import torch' 2> /dev/null; then
    mkdir -p "$scratch"
    "$python" "$here/generate.py" "$scratch/programs.txt" --seed "$seed" --count "$count"
    TAPESTRY_RANDOM_PROGRAMS="$scratch/programs.txt" exec "$program"
  fi
done
echo "skipped: no Python with PyTorch (apt-get install python3-torch)"
exit 77
