#!/usr/bin/env bash
# Runs torch_dump_test.py with $TAPESTRY_TORCH_PYTHON, or the first Python here that has PyTorch. Exit
# code 77, which ctest shows as skipped, where none has.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

for python in "${TAPESTRY_TORCH_PYTHON:-python3}" /usr/bin/python3; do
  if "$python" -c 'import torch' 2> /dev/null; then
    exec "$python" "$here/torch_dump_test.py"
  fi
done
echo "skipped: no Python with PyTorch (apt-get install python3-torch)"
exit 77
