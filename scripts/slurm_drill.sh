#!/usr/bin/env bash
# Interrupts a run on a Slurm cluster that it starts on this machine: preemptions, requeues, warnings
# before the end of the time and lost nodes, some of them onto another number of nodes. Compares every
# step with a run that nobody has disturbed. The test `cluster.slurm` is a part of it. The last line is
# the verdict; the folder keeps what squeue and scontrol have said. Needs slurm-wlm and munge of Debian,
# and the targets pretrain_gpt and slow_disk.
#
#   scripts/slurm_drill.sh                       20 interruptions, about five minutes
#   scripts/slurm_drill.sh --interruptions 100
#
#   --interruptions N  how many (20)
#   --build DIR        folder with the built programs (build/release)
#   --work DIR         folder for what is kept (BUILD/slurm_drill); what it held is removed
set -euo pipefail
if [[ "${1:-}" == -h || "${1:-}" == --help ]]; then
  sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
  exit 0
fi
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
wrong() {
  echo "slurm_drill.sh: $*; --help shows the options" >&2
  exit 2
}

interruptions=20 build="$root/build/release" work=""
while (($# > 0)); do
  (($# > 1)) || wrong "$1 needs a value, or is no option"
  case "$1" in
    --interruptions) interruptions="$2" ;;
    --build) build="$2" ;;
    --work) work="$2" ;;
    *) wrong "unknown option $1" ;;
  esac
  shift 2
done
[[ "$interruptions" =~ ^[1-9][0-9]{0,3}$ ]] || wrong "--interruptions is '$interruptions', expected a positive number"
for file in examples/gpt/pretrain_gpt tests/libslow_disk.so; do
  [[ -e "$build/$file" ]] || wrong "$build/$file: is not built (cmake --build $build --target pretrain_gpt slow_disk)"
done
exec python3 "$root/tests/cluster/slurm/slurm_test.py" --program "$build/examples/gpt/pretrain_gpt" \
  --slow-disk "$build/tests/libslow_disk.so" --work "${work:-$build/slurm_drill}" --interruptions "$interruptions"
