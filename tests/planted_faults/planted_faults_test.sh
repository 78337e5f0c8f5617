#!/usr/bin/env bash
# planted_faults_test.sh PRETRAIN_GPT: a part of plant_faults.py, with $TAPESTRY_TORCH_PYTHON or the first
# Python here that has PyTorch. Exit code 77, which ctest shows as skipped, where none has.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
for python in "${TAPESTRY_TORCH_PYTHON:-python3}" /usr/bin/python3; do
  if "$python" -c 'import torch' 2> /dev/null; then
    # Where in a model something is left out is told by its values alone.
    for part in "gpt2 losses 9 optimizer" "llama gradients 11 optimizer" "qwen3 all 13" "mixtral losses 13 optimizer"; do
      read -r model stored every kind <<< "$part"
      "$python" "$here/plant_faults.py" --program "$1" --models "$model" --stored "$stored" --every "$every" --kind "$kind"
    done
    exit 0
  fi
done
echo "skipped: no Python with PyTorch (apt-get install python3-torch)"
exit 77
