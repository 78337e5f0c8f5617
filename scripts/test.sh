#!/usr/bin/env bash
# Sets up as quickstart.sh does, with packages-test.txt, builds everything, runs all tests. Arguments go to ctest, for
# example -R autograd or -LE slow. Exits as ctest does.
set -euo pipefail
if [[ "${1:-}" == -h || "${1:-}" == --help ]]; then  # what stands above
  sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"
  exit 0
fi

# shellcheck source-path=SCRIPTDIR source=setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
# shellcheck disable=SC2034  # setup.sh reads it
packages+=(packages-test.txt)
# shellcheck disable=SC2034
cpu_levels=all # each is tested where the processor has it
start_log
announce 40
echo "  run all tests: about half an hour on two cores"
set_up "Building everything"
cd "$root"

# Three tests at a time: most of the time of a test one thread works, and that of jobs that end and start again
# is waiting.
exec ctest --test-dir "$build" --output-on-failure --no-tests=error -j "$(($(nproc) < 2 ? 1 : 3))" "$@"
