#!/usr/bin/env bash
# Trains a GPT on several ranks: starts pretrain_gpt under mpirun.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: pretrain_gpt.sh [CONFIG.yaml] [OPTION of pretrain_gpt]...

CONFIG defaults to pretrain_gpt_7B.yaml; a name without a folder is also looked for beside this
script. Runs in the current folder; each rank logs to output/log/rank_N/.

A run in whose output folder another one is still training is refused, as is one in which another
has trained. With --replace the other one, if it is on this machine, is asked to save and to end,
and its files are moved to the folder's sub-folder old/; with --overwrite files are moved, but
nobody is ended. Runs in other folders are left alone.

Environment:
  RANKS             number of ranks (default 2)
  HOSTFILE          Open MPI's host file, one "name slots=n" a line (default: this machine alone)
  PORT              first of the TCP ports on which ranks on several hosts talk (default: any)
  THREADS_PER_RANK  OpenMP threads of each rank (default: the cores of a host over its ranks)
  BIND              what a rank is bound to: auto (its share of the cores, if there are enough),
                    core, socket, numa or none
  PRETRAIN_GPT      the program (default: beside this script, build/release, or the PATH)

Under Slurm, start the program itself: srun --mpi=pmix -n RANKS pretrain_gpt --config_path CONFIG.yaml
TEXT
}

die() {
  echo "pretrain_gpt.sh: $*" >&2
  exit 2
}

positive() {
  [[ "$2" =~ ^[1-9][0-9]{0,5}$ ]] || die "$1 is '$2', must be a positive number"
}

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
config="pretrain_gpt_7B.yaml"
case "${1:-}" in
  -h | --help)
    usage
    exit 0
    ;;
  "" | -*) ;;
  *)
    config="$1"
    shift
    ;;
esac
if [[ ! -f "$config" && "$config" != */* && -f "$here/$config" ]]; then
  config="$here/$config"
fi
[[ -f "$config" ]] || die "$config: no such file; presets are in $here"

program="${PRETRAIN_GPT:-}"
if [[ -z "$program" ]]; then
  for candidate in "$here/pretrain_gpt" "$here/../../build/release/examples/gpt/pretrain_gpt" \
    "$(command -v pretrain_gpt || true)"; do
    if [[ -x "$candidate" ]]; then
      program="$candidate"
      break
    fi
  done
fi
[[ -n "$program" && -x "$program" ]] ||
  die "pretrain_gpt is not built: cmake --preset release && cmake --build --preset release"
command -v mpirun >/dev/null || die "mpirun is missing: apt-get install openmpi-bin"

ranks="${RANKS:-2}"
positive RANKS "$ranks"
hosts=1
host_options=()
if [[ -n "${HOSTFILE:-}" ]]; then
  [[ -r "$HOSTFILE" ]] || die "HOSTFILE $HOSTFILE cannot be read"
  hosts="$(grep -cvE '^[[:space:]]*(#|$)' "$HOSTFILE" || true)"
  ((hosts > 0)) || die "HOSTFILE $HOSTFILE names no host"
  host_options=(--hostfile "$HOSTFILE")
fi
if [[ -n "${PORT:-}" ]]; then
  positive PORT "$PORT"
  ((PORT <= 65000)) || die "PORT is $PORT, must be at most 65000"
  host_options+=(--mca btl_tcp_port_min_v4 "$PORT" --mca oob_tcp_dynamic_ipv4_ports
    "$((PORT + 400))-$((PORT + 500))")
fi

cores="$(nproc)"
on_a_host=$(((ranks + hosts - 1) / hosts))
threads="${THREADS_PER_RANK:-$((cores >= on_a_host ? cores / on_a_host : 1))}"
positive THREADS_PER_RANK "$threads"
bind="${BIND:-auto}"
case "$bind" in
  auto)
    if ((hosts == 1 && on_a_host * threads <= cores)); then
      bind_options=(--map-by "slot:PE=$threads" --bind-to core)
    else
      bind_options=(--bind-to none)
    fi
    ;;
  core | socket | numa | none) bind_options=(--bind-to "$bind") ;;
  *) die "BIND is '$bind', must be auto, core, socket, numa or none" ;;
esac
if ((hosts == 1)); then
  host_options+=(--oversubscribe)
fi
if ((EUID == 0)); then
  host_options+=(--allow-run-as-root)  # in a container; Open MPI asks otherwise
fi

export OMP_NUM_THREADS="$threads"
# In a session of its own, so that Ctrl-C reaches this script alone.
setsid mpirun -n "$ranks" "${host_options[@]}" "${bind_options[@]}" -x OMP_NUM_THREADS \
  "$program" --config_path "$config" --run_cmd "pretrain_gpt.sh: $ranks ranks x $threads threads" \
  "$@" &
job=$!
trap 'interrupted=true; kill -USR1 "$job" 2>/dev/null || true' TERM INT
# A signal interrupts the wait; the job goes on until it has saved.
interrupted=true
while [[ $interrupted == true ]]; do
  interrupted=false
  code=0
  wait "$job" || code=$?
done
exit "$code"
