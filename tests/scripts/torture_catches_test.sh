#!/usr/bin/env bash
# shellcheck disable=SC2016,SC2053  # patterns; what stand-ins say is expanded when they run
# torture_catches_test.sh TORTURE_SH PROGRAMS: the drill fails where going on is not exact, where a run
# does not go on at all, and where its arguments are wrong.
set -uo pipefail
torture="$1" programs="$2"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
export TMPDIR="$scratch"
failures=0

# faulty NAME BODY: programs of which pretrain_gpt does something else where it goes on.
faulty() {
  mkdir "$scratch/$1"
  printf '#!/usr/bin/env bash\nmore=()\nif [[ "$*" == *resume_training=True* ]]; then\n  %s\nfi\nexec %q "$@" "${more[@]}"\n' \
    "$2" "$programs/pretrain_gpt" >"$scratch/$1/pretrain_gpt"
  cp "$programs/compare_checkpoints" "$scratch/$1"
  chmod +x "$scratch/$1/pretrain_gpt"
}
# expect CODE PATTERN ARGUMENT...: of torture.sh. When a kill comes hangs on the machine: whether there
# is a checkpoint to go on with by then is not known.
expect() {
  local code=0 out
  out="$(bash "$torture" "${@:3}" 2>&1)" || code=$?
  if [[ $code != "$1" || "$(tail -n 1 <<<"$out")" != *$2* ]]; then
    echo "FAILED: torture.sh ${*:3}: exit code $code, expected $1 and '$2':" >&2
    echo "$out" >&2
    failures=$((failures + 1))
  fi
}

short=(--kills 6 --seed 3 --set training_config.training_iters=30)
faulty inexact 'more=(--set training_config.no_load_optim=True --set optimizer_config.eps=1e-2)'
expect 1 "torture: FAILED: run 1 is not what the undisturbed run is" --programs "$scratch/inexact" "${short[@]}"
faulty stuck 'echo "something is wrong with the disk" >&2; exit 1'
expect 1 "torture: FAILED: going on with * ends with exit code 1" --programs "$scratch/stuck" "${short[@]}"
expect 1 "torture: FAILED: the undisturbed run ends with exit code 2" --programs "$programs" --set training_config.training_iters=many
expect 2 "unknown option --kill" --kill 3
expect 2 "--kills is 'many', expected a number" --kills many
expect 2 "dp=2,up=2: 'up=2' is none of dp" --programs "$programs" --layout dp=2,up=2
expect 2 "nowhere/pretrain_gpt: is not built" --programs nowhere

((failures == 0)) && echo "ok"
exit $((failures > 0))
