#!/usr/bin/env bash
# --cpu_level of the numeric test programs: what runs, what is skipped and why, what is refused.
#
#   cpu_level_test.sh PROGRAM LEVEL...   (the levels that there are, lowest first)
set -euo pipefail

program="$1"
shift
levels=("$@")
failures=0
unset TAPESTRY_CPU_LEVEL

# expect CODE TEXT ENVIRONMENT... -- ARGUMENT...: the exit code, and what the output contains.
expect() {
  local code="$1" text="$2" found=0 output
  shift 2
  local environment=()
  while [[ "$1" != -- ]]; do
    environment+=("$1")
    shift
  done
  shift
  output="$(env "${environment[@]}" "$program" --gtest_filter='Nothing*' "$@" 2>&1)" || found=$?
  if [[ "$found" != "$code" || "$output" != *"$text"* ]]; then
    echo "FAILED: ${environment[*]} $*: exit code $found, not $code with '$text': $output"
    failures=$((failures + 1))
  fi
}

expect 0 "0 tests" -- --cpu_level=portable
expect 0 "0 tests" TAPESTRY_CPU_LEVEL=portable -- --cpu_level=portable
expect 2 "--cpu_level=avx51 is no CPU level" -- --cpu_level=avx51
expect 2 "TAPESTRY_CPU_LEVEL=avx51 is no CPU level" TAPESTRY_CPU_LEVEL=avx51 -- --cpu_level=portable
expect 2 "TAPESTRY_CPU_LEVEL=avx51 is no CPU level" TAPESTRY_CPU_LEVEL=avx51 --

# Every level above the one that is allowed is skipped, whether or not the processor has it.
for level in "${levels[@]:1}"; do
  expect 77 "skipped: " TAPESTRY_CPU_LEVEL=portable -- "--cpu_level=$level"
done

# A level runs if the ones below it do, up to that of the processor; a build may leave some out.
ended=no
for level in "${levels[@]}"; do
  code=0
  said="$("$program" --gtest_filter='Nothing*' "--cpu_level=$level")" || code=$?
  [[ "$said" != *"this build has no loops"* ]] || continue
  case "$ended $code" in
    "no 0" | "yes 77") ;;
    "no 77") ended=yes ;;
    *)
      echo "FAILED: level $level: exit code $code"
      failures=$((failures + 1))
      ;;
  esac
done

exit $((failures > 0))
