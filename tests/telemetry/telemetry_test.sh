#!/usr/bin/env bash
# What other programs see of a run: see telemetry_test.py.
#
#   telemetry_test.sh SCRATCH PRETRAIN_GPT
#
# Exit code 77, which ctest shows as skipped, where there is no Python.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
if ! python3 -c 'import unittest' 2> /dev/null; then
  echo "skipped: no Python (apt-get install python3)"
  exit 77
fi
mkdir -p "$1"
exec env PYTHONDONTWRITEBYTECODE=1 python3 "$here/telemetry_test.py" "$2" "$1"
