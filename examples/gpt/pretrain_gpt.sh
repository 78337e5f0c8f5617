#!/usr/bin/env bash
# Trains a GPT on several ranks: starts pretrain_gpt under mpirun.
set -euo pipefail

# Breaks lines between words where a terminal has no room for them.
to_fit() {
  local columns=""
  [[ ! -t 1 ]] || columns="$(stty size <&3 2>/dev/null | cut -d ' ' -f 2)"
  fold -s -w "$((${columns:-0} >= 20 ? columns : 100000))"
} 3>&1

usage() {
  to_fit <<'TEXT'
Usage: pretrain_gpt.sh [--restarts N] [CONFIG.yaml] [OPTION of pretrain_gpt]...

CONFIG defaults to pretrain_gpt.yaml of the current folder, or where there is none to the preset
pretrain_gpt_7B.yaml. A name without a folder is also looked for among the presets, beside this
script or in ../share/tapestry where it is installed. Runs in the current folder; each rank logs to
output/log/rank_N/. With --evaluate, --resume or --replay and without
CONFIG the folder says what it is; --plot, --version and --help TOPIC need no ranks.

A run in whose output folder another one is still training is refused, as is one in which another
has trained. With --replace the other one, if it is on this machine, is asked to save and to end,
and its files are moved to the folder's sub-folder old/; with --overwrite files are moved, but
nobody is ended. Runs in other folders are left alone.

  --restarts N      start a job that loses a rank or a host, or crashes, again, up to N times: from
                    its newest checkpoint, and without hosts of HOSTFILE that do not answer any more.
                    A crash at the same step twice in a row ends it, as do bad input and a stop on
                    request

Environment:
  RANKS             number of ranks (default: as many as ASCEND_RT_VISIBLE_DEVICES lists, or the
                    slots of HOSTFILE, else 1)
  HOSTFILE          Open MPI's host file, one "name slots=n" a line (default: this machine alone)
  PORT              first of the TCP ports on which ranks on several hosts talk (default: any)
  THREADS_PER_RANK  threads of each rank (default: the cores of a host over its ranks)
  BIND              what a rank is bound to: auto (its share of the cores, if there are enough),
                    core, socket, numa or none
  PRETRAIN_GPT      the program (default: beside this script, build/release, or the PATH)
  RESTART_DELAY     seconds before the first restart; they double up to 300, and begin anew where the
                    run has got further (default: 10)
  PROBE_SECONDS     how long hosts have to answer before a restart (default: 30)
  END_SECONDS       how long mpirun may take to end when a rank has failed (default: 60)

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

# How many devices the list names that other launchers take their workers from: "0,1,2,3".
visible_devices() {
  local list="${ASCEND_RT_VISIBLE_DEVICES:-}"
  [[ -n "$list" ]] || return 0
  [[ "$list" =~ ^[0-9]+(,[0-9]+)*$ ]] ||
    die "ASCEND_RT_VISIBLE_DEVICES is '$list', expected numbers such as 0,1,2,3; or set RANKS"
  tr ',' '\n' <<<"$list" | wc -l
}

# slots_of HOSTFILE: of all its lines, one of a line that does not say.
slots_of() {
  sed -E 's/#.*//; /^[[:space:]]*$/d; s/.*[[:space:]]slots[[:space:]]*=[[:space:]]*([0-9]+).*/\1/; t; s/.*/1/' \
    "$1" | awk '{ sum += $1 } END { print sum }'
}

# given OPTION...: whether one of them is among the words of the command line.
given() {
  local word option
  for word in "${words[@]}"; do
    for option in "$@"; do
      [[ "$word" != "$option" && "$word" != "$option="* ]] || return 0
    done
  done
  return 1
}

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd && echo .)"
here="${here%$'\n.'}" # $() alone would take a line break off the name
presets="$here"
[[ -f "$here/pretrain_gpt_7B.yaml" ]] || presets="${here%/*}/share/tapestry"
# take_restarts WORD...: takes --restarts N out of them; the others are then `words`.
restarts=""
take_restarts() {
  words=()
  while (($# > 0)); do
    case "$1" in
      --restarts)
        (($# > 1)) || die "--restarts needs a number: how often the run may be started again"
        restarts="$2"
        shift
        ;;
      --restarts=*) restarts="${1#*=}" ;;
      *) words+=("$1") ;;
    esac
    shift
  done
  [[ "$restarts" =~ ^([0-9]{1,6})?$ ]] ||
    die "--restarts is '$restarts', expected how often the run may be started again, such as 5"
}

take_restarts "$@"
set -- "${words[@]}"
config=""
if [[ -n "${1:-}" && "$1" != -* ]]; then
  config="$1"
  shift
fi
words=("$@")
if [[ $# == 1 && -z "$config" && ("$1" == -h || "$1" == --help) ]]; then
  usage
  exit 0
fi
alone=false
! given --plot --version --help -h || alone=true
if [[ -z "$config" && $alone == false ]] && ! given --config_path --evaluate --resume --replay; then
  config="pretrain_gpt.yaml"
  if [[ ! -f "$config" ]]; then
    config="$presets/pretrain_gpt_7B.yaml"
    echo "pretrain_gpt.sh: there is no pretrain_gpt.yaml in this folder; runs the preset $config" >&2
  fi
fi
if [[ -n "$config" ]]; then
  if [[ ! -f "$config" && "$config" != */* && -f "$presets/$config" ]]; then
    config="$presets/$config"
  fi
  [[ -f "$config" ]] || die "$config: no such file; presets are in $presets"
  words=(--config_path "$config" "${words[@]}")
fi

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
if [[ $alone == true ]]; then
  exec "$program" "${words[@]}"
fi

# Which MPI the program is linked with: sets `mpi`, and `mpirun`, which starts its ranks. That of the
# other one would start as many jobs of one rank. Debian's alternatives may name either. What is asked
# has said all before it is looked at: a pipe that grep -q closes early would be a failure.
find_mpirun() {
  local name names=(mpirun mpirun.openmpi) package=openmpi-bin sign="Open MPI|OpenRTE" said
  mpi=openmpi
  said="$(ldd "$program" 2>/dev/null)" || true # of a script nothing
  if [[ "$said" =~ libmpich|libmpi\.so\.12 ]]; then
    mpi=mpich
    names=(mpirun.mpich mpiexec.hydra mpirun)
    package=mpich
    sign="HYDRA|MPICH|Intel"
  fi
  for name in "${names[@]}"; do
    mpirun="$name"
    command -v "$name" >/dev/null || continue
    said="$("$name" --version 2>&1)" || true
    [[ ! "$said" =~ $sign ]] || return 0
  done
  die "mpirun of $mpi, with which $program is built, is missing: apt-get install $package"
}
find_mpirun

# What mpirun is told about hosts, ports and cores: sets ranks, hosts, threads, host_options and
# bind_options from the environment.
choose_ranks() {
  hosts=1
  host_options=()
  ranks="${RANKS:-}"
  [[ -n "$ranks" ]] || ranks="$(visible_devices)"
  if [[ -n "${HOSTFILE:-}" ]]; then
    [[ -r "$HOSTFILE" ]] || die "HOSTFILE $HOSTFILE cannot be read"
    [[ -n "$ranks" ]] || ranks="$(slots_of "$HOSTFILE")"
    hosts="$(grep -cvE '^[[:space:]]*(#|$)' "$HOSTFILE" || true)"
    ((hosts > 0)) || die "HOSTFILE $HOSTFILE names no host"
    host_options=(--hostfile "$HOSTFILE")
  fi
  ranks="${ranks:-1}"
  positive RANKS "$ranks"
  if ((hosts == 1)); then
    host_options+=(--oversubscribe)
  fi
  choose_ports
  choose_cores
}

choose_ports() {
  if [[ -n "${PORT:-}" ]]; then
    positive PORT "$PORT"
    ((PORT <= 65000)) || die "PORT is $PORT, must be at most 65000"
    host_options+=(--mca btl_tcp_port_min_v4 "$PORT" --mca oob_tcp_dynamic_ipv4_ports
      "$((PORT + 400))-$((PORT + 500))")
  fi
  if ((EUID == 0)); then
    host_options+=(--allow-run-as-root)  # in a container; Open MPI asks otherwise
  fi
}

choose_cores() {
  local cores on_a_host
  cores="$(nproc)"
  on_a_host=$(((ranks + hosts - 1) / hosts))
  threads="${THREADS_PER_RANK:-$((cores >= on_a_host ? cores / on_a_host : 1))}"
  positive THREADS_PER_RANK "$threads"
  local bind="${BIND:-auto}"
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
}

# What ranks write goes through mpirun, so they are told where it ends, and how wide that is.
find_terminal() {
  local group foreground streams=""
  terminal_options=()
  # In the background of a terminal somebody else is typing there.
  read -r _ _ _ _ group _ _ foreground _ <"/proc/$$/stat"
  if [[ "$foreground" == "$group" || "$foreground" == -1 ]]; then
    [[ ! -t 1 ]] || streams+=1
    [[ ! -t 2 ]] || streams+=2
  fi
  unset TAPESTRY_TERMINAL
  if [[ -n "$streams" ]]; then
    TAPESTRY_TERMINAL="$(readlink "/proc/$$/fd/${streams:0:1}"):$streams"
    export TAPESTRY_TERMINAL
    terminal_options=(-x TAPESTRY_TERMINAL)
  fi
}

# Passes on what comes, without Open MPI's paragraphs about a job that fails: the program has said
# why. That a signal has ended a rank nobody else can say; but that of the second Ctrl-C.
# The last lines, paragraphs included, are also left in the file $last_words, where there is one. Where
# they say that a rank has failed this script gets SIGUSR2.
without_mpirun_words() {
  local line block="" inside=false dashes='^-{60,}$' last=()
  while IFS= read -r line || [[ -n "$line" ]]; do
    last+=("$line")
    ((${#last[@]} <= 40)) || last=("${last[@]:1}")
    if [[ $inside == false && "$line" =~ $dashes ]]; then
      inside=true
      block="$line"$'\n'
    elif [[ $inside == false ]]; then
      [[ "$line" == *"has sent help message help-mpi-api.txt"* ||
        "$line" == "mpirun: Forwarding signal"* ||
        "$line" == *"MCA parameter \"orte_base_help_aggregate\""* ]] || printf '%s\n' "$line" >&2
    else
      block+="$line"$'\n'
      if [[ "$line" =~ $dashes ]]; then
        [[ "$block" != *"MPI_ABORT was invoked"* && "$block" != *"job has been aborted"* &&
          "$block" != *"lost communication"* ]] || kill -USR2 "$$"
        [[ "$block" == *"MPI_ABORT was invoked"* || "$block" == *"a non-zero exit code"* ||
          "$block" == *"exited with non-zero status"* ||
          "$block" == *"(User defined signal 1)"* ]] || printf '%s' "$block" >&2
        inside=false
        block=""
      fi
    fi
  done
  printf '%s' "$block" >&2
  [[ -z "$last_words" ]] || printf '%s\n' "${last[@]}" >"$last_words"
}

# Sets `starter`: mpirun and its options. MPICH's passes all variables on, takes hosts by a list of its
# own, and needs no word for more ranks than cores.
choose_starter() {
  starter=("$mpirun" -n "$ranks")
  if [[ $mpi == openmpi ]]; then
    starter+=("${host_options[@]}" "${bind_options[@]}" -x OMP_NUM_THREADS "${job_options[@]}"
      "${terminal_options[@]}")
    return
  fi
  if [[ -n "${HOSTFILE:-}" ]]; then
    starter+=(-hosts "$(sed -E 's/#.*//; /^[[:space:]]*$/d; s/^[[:space:]]*([^[:space:]]+)[[:space:]]*/\1 /;
      s/^([^ ]+) (.*[[:space:]])?slots[[:space:]]*=[[:space:]]*([0-9]+).*/\1:\3/; s/ .*//' "$HOSTFILE" |
      paste -sd,)")
  fi
  if [[ -n "${PORT:-}" ]]; then
    export MPIEXEC_PORT_RANGE="$((PORT + 400)):$((PORT + 500))"
  fi
  if [[ "${bind_options[*]}" == *"slot:PE="* ]]; then
    starter+=(-bind-to "core:$threads")
  else
    starter+=(-bind-to "${bind_options[1]}")
  fi
}

# The processes that a process has started.
children_of() {
  cat "/proc/$1/task/"*/children 2>/dev/null
}

# Passed on to ranks: mpirun loses what comes before it has started any. MPICH's has a child that
# starts them.
ask_ranks() {
  local child ranks_run=""
  while kill -0 "$job" 2>/dev/null && [[ -z "$ranks_run" ]]; do
    ranks_run="$(children_of "$job")"
    if [[ $mpi == mpich ]]; then
      for child in $ranks_run; do
        ranks_run="$(children_of "$child")"
      done
    fi
    [[ -n "$ranks_run" ]] || sleep 0.05
  done
  kill -USR1 "$job" 2>/dev/null || true
}

# stop NUMBER: asks all ranks to end. Shells may send SIGHUP, which is 1, twice.
stop() {
  interrupted=true
  if [[ $1 != 1 || $signals == 0 ]]; then
    signals=$((signals + 1))
    signal=$1
    [[ -z "$job" ]] || ask_ranks
  fi
}

# Ends every process of a session: mpirun's is its own.
kill_session() {
  local stat line fields
  for stat in /proc/[0-9]*/stat; do
    { read -r line <"$stat"; } 2>/dev/null || continue
    read -ra fields <<<"${line##*) }" # state, parent, group, session
    [[ "${fields[3]}" != "$1" ]] || kill -9 "${line%% *}" 2>/dev/null || true
  done
}

# A rank has failed, so that mpirun ends the others and itself. It waits for hosts that do not answer any
# more as long as TCP does, which may be forever.
expect_end() {
  interrupted=true
  [[ -n "$job" && -z "$alarm" ]] || return 0
  (
    trap - HUP INT TERM
    sleep "$end_seconds"
    trap '' TERM
    # It may have ended while this script was stopped.
    { read -r line <"/proc/$job/stat"; } 2>/dev/null && [[ "${line##*) }" != Z* ]] || exit 1
    echo "pretrain_gpt.sh: a rank failed $end_seconds s ago and mpirun has not ended the others; kills it" >&5
    kill_session "$job"
  ) &
  alarm=$!
}

# run_ranks WORD...: starts the program with these on all ranks and waits for it: sets `code`.
run_ranks() {
  local filter relay="" process orphaned=() alarm=""
  export OMP_NUM_THREADS="$threads"
  exec 3> >(without_mpirun_words) 5>&2
  filter=$!
  # Where nobody reads a pipe any more mpirun would end the ranks at once: they are asked to.
  exec 4>&1
  if [[ -p /dev/stdout ]]; then
    exec 4> >(
      trap '' HUP INT TERM
      cat || kill -HUP "$$"
      exec cat >/dev/null
    )
    relay=$!
  fi
  # In a session of its own, so that Ctrl-C, or the end of the terminal, reaches this script alone;
  # if the script is killed the ranks are asked to save and to end all the same.
  ! command -v setpriv >/dev/null || orphaned=(setpriv --pdeathsig TERM)
  choose_starter
  setsid "${orphaned[@]}" "${starter[@]}" "$program" "$@" >&4 2>&3 3>&- 4>&- 5>&- &
  job=$!
  ((signals == 0)) || ask_ranks
  exec 3>&- 4>&-
  # A signal interrupts the wait; the job goes on until it has saved.
  interrupted=true
  while [[ $interrupted == true ]]; do
    interrupted=false
    code=0
    { wait "$job" || code=$?; } 2>/dev/null # where the shell says that it was killed
  done
  if [[ -n "$alarm" ]]; then
    kill "$alarm" $(cat "/proc/$alarm/task/$alarm/children" 2>/dev/null) 2>/dev/null || true
    ! wait "$alarm" 2>/dev/null || code=1 # it has killed mpirun, which knows no exit code
  fi
  exec 5>&-
  # What they have still to pass on.
  for process in "$filter" $relay; do
    wait "$process" 2>/dev/null || true
  done
  job=""
  ((code != 255)) || code=1 # MPICH's mpiexec, ended as it cannot reach a host
  # MPICH gives the signal that has ended a rank without the 128 that others add: it was SIGUSR1.
  [[ $mpi == openmpi ]] || ((signals == 0 || code != 10)) || code=$((128 + code))
  if ((signals > 0 && code > 128)); then
    code=$((128 + signal)) # a second one ends the ranks at once, as does one while they start
    echo "pretrain_gpt.sh: ended by SIG$(kill -l "$signal")" >&2
  fi
}

choose_ranks
find_terminal
end_seconds="${END_SECONDS:-60}"
positive END_SECONDS "$end_seconds"
last_words=""
job_options=()
signals=0
signal=0
job=""
# Before there is a job, so that none is left behind by a signal that comes while it starts.
trap 'stop 1' HUP
trap 'stop 2' INT
trap 'stop 10' USR1
trap 'stop 15' TERM
trap expect_end USR2
if [[ -n "$restarts" ]]; then
  # shellcheck source-path=SCRIPTDIR
  . "$presets/pretrain_gpt_restarts.sh"
  run_with_restarts
else
  given --run_cmd || words+=(--run_cmd "pretrain_gpt.sh: $ranks ranks x $threads threads")
  run_ranks "${words[@]}"
fi
exit "$code"
