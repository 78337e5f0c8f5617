#!/usr/bin/env bash
# Trains small models of Hugging Face's kinds in PyTorch, each with a fault in optimizer, schedule, step
# or model, and has pretrain_gpt --find_fault name it, for references that store all, gradients, or losses
# alone. Options are those of tests/planted_faults/plant_faults.py: --models gpt2 --only clip. Builds what
# it needs in build/release; exit code 1 if fewer than 95 % are found, fewer than 90 % named, or a training
# without a fault raises an alarm; 77 where no Python has PyTorch.
set -euo pipefail
if [[ "${1:-}" == -h || "${1:-}" == --help ]]; then  # what stands above
  sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"
  exit 0
fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."

[ -e build/release/build.ninja ] || [ -e build/release/Makefile ] || cmake --preset release >/dev/null
cmake --build build/release --target pretrain_gpt >/dev/null
for python in "${TAPESTRY_TORCH_PYTHON:-python3}" /usr/bin/python3; do
  if "$python" -c 'import torch' 2> /dev/null; then
    exec "$python" tests/planted_faults/plant_faults.py --program build/release/examples/gpt/pretrain_gpt "$@"
  fi
done
echo "plant_faults.sh: no Python with PyTorch (apt-get install python3-torch)"
exit 77
