# shellcheck shell=bash
# For tests of packaging, which source it: a scratch folder, failures, and parts that cannot run here.
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck disable=SC2034  # those that source this use it
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
failures=0
left_out=()
fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

# has PROGRAM WHAT: whether the program is there; if not, WHAT is left out.
has() {
  command -v "$1" >/dev/null && return
  [[ " ${left_out[*]} " == *" $2 ($1 is missing) "* ]] || left_out+=("$2 ($1 is missing)")
  return 1
}

# finish: fails, or is skipped where a part could not run, though the others have passed.
finish() {
  ((failures == 0)) || exit 1
  ((${#left_out[@]} == 0)) && exit 0
  printf 'skipped, but for what is above:%s\n' "$(printf ' %s;' "${left_out[@]}")"
  exit 77
}
