# shellcheck shell=bash
# Shared by quickstart.sh and test.sh, which source it: installs what is missing of packages.txt (tests:
# of packages-test.txt, too), configures and builds. Everything may be run again at any time. What the
# commands print goes to a log; the terminal shows a line for each of them.

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd && echo .)"
root="${root%$'\n.'}"  # $() alone would take a line break off the name
readonly root
readonly build="$root/build/release"
packages=(packages.txt) # lists, to which the script that sources this may add
cpu_levels="" # of the kernels, where the script that sources this says so: see configure
readonly mib_per_job=1792  # what a compiler process takes at most
log="$root/build/$(basename "$0" .sh).log"
readonly log

fail() {  # fail EXIT_CODE MESSAGE...
  local code=$1
  shift
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit "$code"
}

# start_log: empties it, so that it is about this start alone.
start_log() {
  if ! mkdir -p "$(dirname "$log")" || ! : >"$log"; then
    fail 2 "the log $log cannot be written"
  fi
}

# time_text SECONDS: "2:05".
time_text() {
  printf '%d:%02d' $(($1 / 60)) $(($1 % 60))
}

# line_of_phase NAME SECONDS: what the command of a phase is doing, by the last line of its output.
line_of_phase() {
  local last text
  text="$1, $(time_text "$2")"
  last="$(tail -c 400 -- "$log" | tail -n 1 | LC_ALL=C tr -dc '[:print:]')"
  if [[ "$last" =~ ^\[([0-9]+)/([0-9]+)\] ]]; then # ninja counts
    local -r done_now=${BASH_REMATCH[1]} all=${BASH_REMATCH[2]}
    text+=": $done_now of $all"
    ((done_now < 5 || $2 < 10)) ||
      text+=", about $(time_text $(($2 * (all - done_now) / done_now))) left"
  elif [[ -n "$last" && "$last" != '== '* ]]; then
    text+=": $last"
  fi
  printf '%s' "$text"
}

# watch_phase NAME: on a terminal, a line that moves for as long as this script runs.
watch_phase() {
  local columns text
  local -r start=$SECONDS
  columns="$(stty size <&1 2>/dev/null | cut -d ' ' -f 2)" || true
  ((${columns:-0} >= 20)) || columns=80
  while kill -0 "$$" 2>/dev/null; do
    text="$(line_of_phase "$1" $((SECONDS - start)))"
    printf '\r\033[K%s' "${text:0:columns-1}"
    sleep 1
  done
}

# end_of_log: from ninja's first failure on, or what the last phase has printed last.
end_of_log() {
  awk '/^== / { count = 0; failed = 0 }
    /^FAILED: / { if (!failed) { failed = 1; count = 0 } }
    { if (!failed || count < 40) lines[count++] = $0 }
    END { for (i = failed || count < 30 ? 0 : count - 30; i < count; ++i) print lines[i] }' "$log"
}

watcher=""
stop_watching() {
  [[ -n "$watcher" ]] || return 0
  kill "$watcher" 2>/dev/null || true
  wait "$watcher" 2>/dev/null || true
  watcher=""
  printf '\r\033[K'
}

# phase NAME COMMAND...: runs the command with its output in the log; says how long it took, or shows
# the log's end. The command stays in the foreground: Ctrl-C is for it.
phase() {
  local -r name="$1" start=$SECONDS
  local code=0
  shift
  mkdir -p "$(dirname "$log")"
  printf '== %s: %s\n' "$name" "$*" >>"$log"
  if [[ -t 1 ]]; then
    watch_phase "$name" 9>&- &
    watcher=$!
    trap stop_watching EXIT
  else
    echo "$name ..."
  fi
  "$@" >>"$log" 2>&1 || code=$?
  stop_watching
  if ((code != 0)); then
    printf '%s failed with exit code %d. The end of %s:\n' "$name" "$code" "$log" >&2
    end_of_log | sed 's/^/    /' >&2
    return "$code"
  fi
  echo "$name: done, $(time_text $((SECONDS - start)))"
}

# missing_packages [PACKAGE...]: those that are not installed, one a line; without arguments, those of
# the lists in `packages`.
missing_packages() {
  local package
  while read -r package; do
    if [[ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" != installed ]]; then
      echo "$package"
    fi
  done < <(if (($# > 0)); then printf '%s\n' "$@"; else
    (cd "$root" && sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "${packages[@]}")
  fi)
}

# install_packages [PACKAGE...]: installs the missing ones, or exits with the line to run as root.
install_packages() {
  command -v dpkg-query >/dev/null ||
    fail 2 "this is not Debian; install what packages.txt lists, then see CONTRIBUTING.md"
  local -a missing run=()
  mapfile -t missing < <(missing_packages "$@")
  ((${#missing[@]} > 0)) || return 0

  local -r line="apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
  if [[ "$(id -u)" != 0 ]]; then
    if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
      run=(sudo -n)
    else
      printf '%d packages are missing. Please run as root, then start this again:\n  %s\n' \
        "${#missing[@]}" "$line" >&2
      exit 2
    fi
  fi
  echo "Installing ${#missing[@]} packages: ${missing[*]}"
  local -r -a apt=("${run[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q
    -o DPkg::Lock::Timeout=300)
  if ! phase "Reading the lists of packages" "${apt[@]}" update ||
    ! phase "Installing packages" "${apt[@]}" install -y --no-install-recommends "${missing[@]}" ||
    [[ -n "$(missing_packages "$@")" ]]; then
    printf 'The packages could not be installed. Once they can be fetched, run as root:\n  %s\n' \
      "$line" >&2
    exit 2
  fi
}

# As many jobs as cores, but no more than memory carries.
build_jobs() {
  local cores limit available_kib jobs
  cores=$(nproc)
  available_kib=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo)
  if [[ -r /sys/fs/cgroup/memory.max ]]; then  # a container's share
    limit=$(</sys/fs/cgroup/memory.max)
    if [[ "$limit" != max ]] && ((limit / 1024 < available_kib)); then
      available_kib=$((limit / 1024))
    fi
  fi
  jobs=$((available_kib / 1024 / mib_per_job))
  echo $((jobs < 1 ? 1 : (jobs < cores ? jobs : cores)))
}

# announce TARGETS_MINUTES: what is to come and what it takes, before any of it. The minutes are of one
# core, for a build from nothing.
announce() {
  local -a missing
  local jobs free_mib
  local -r needed_mib=1500
  mapfile -t missing < <(missing_packages)
  jobs="$(build_jobs)"
  echo "What will be done; all output is in $log:"
  ((${#missing[@]} == 0)) ||
    echo "  install ${#missing[@]} packages of Debian: some minutes by the network, up to 1 GB of disk"
  if [[ -f "$build/build.ninja" ]]; then
    echo "  build in $build: what has changed there"
  else
    echo "  build in $build: about $((($1 + jobs - 1) / jobs)) minutes on idle cores, 1 GB of disk," \
      "$jobs compilers at a time with $((jobs * mib_per_job / 1024 + 1)) GB of memory at most"
  fi
  free_mib="$(df -Pm -- "$root" 2>/dev/null | awk 'END {print $4}')" || true
  if [[ ! -f "$build/build.ninja" && "$free_mib" =~ ^[0-9]+$ ]] && ((free_mib < needed_mib)); then
    echo "  Warning: $root has $free_mib MB free; the build may not fit"
  fi
}

# taking_turns COMMAND...: two of our commands at once wait for each other.
taking_turns() {
  (
    flock 9
    cd "$root" && "$@"
  ) 9>"$build/.lock"
}

configure() {
  # A folder that moved, or whose build was broken off early, starts afresh.
  if [[ -f "$build/CMakeCache.txt" ]] &&
    ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$build/CMakeCache.txt"; then
    rm -rf "$build/CMakeCache.txt" "$build/CMakeFiles"
  fi
  local -a options=()
  # A build that is there keeps its levels: another choice would compile the kernels again.
  if [[ -n "$cpu_levels" ]] && { [[ "$cpu_levels" == all ]] || [[ ! -f "$build/CMakeCache.txt" ]]; }; then
    options+=("-DTAPESTRY_CPU_LEVELS=$cpu_levels")
  fi
  phase "Configuring" cmake --preset release "${options[@]}"
}

# build_targets NAME [TARGET...]: the named targets, or all of them.
build_targets() {
  local -r name="$1"
  shift
  local -a targets=()
  (($# == 0)) || targets=(--target "$@")
  taking_turns phase "$name" cmake --build "$build" -j "$(build_jobs)" "${targets[@]}"
}

# set_up NAME [TARGET...]: packages, configuration, and the targets by build_targets.
set_up() {
  [[ "$root" != *$'\n'* ]] || fail 2 "the name of this folder has a line break, which CMake and ninja" \
    "cannot take; give it another one: $(printf '%q' "$root")"
  install_packages
  mkdir -p "$build"
  taking_turns configure
  build_targets "$@"
}
