# shellcheck shell=bash
# Shared by quickstart.sh and test.sh, which source it: installs what is missing from packages.txt,
# configures and builds. Everything may be run again at any time.

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
readonly root
readonly build="$root/build/release"
readonly mib_per_job=1792  # what a compiler process takes at most

fail() {  # fail EXIT_CODE MESSAGE...
  local code=$1
  shift
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit "$code"
}

# missing_packages [PACKAGE...]: those that are not installed, one a line; without arguments, those of
# packages.txt.
missing_packages() {
  local package
  while read -r package; do
    if [[ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" != installed ]]; then
      echo "$package"
    fi
  done < <(if (($# > 0)); then printf '%s\n' "$@"; else
    sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "$root/packages.txt"
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
  echo "Installing ${missing[*]}"
  local -r -a apt=("${run[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q
    -o DPkg::Lock::Timeout=300)
  if ! "${apt[@]}" update ||
    ! "${apt[@]}" install -y --no-install-recommends "${missing[@]}" ||
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

# set_up [TARGET...]: packages, configuration, and the named targets, or all of them.
set_up() {
  install_packages
  local -a targets=()
  (($# == 0)) || targets=(--target "$@")
  mkdir -p "$build"
  (
    flock 9  # two of our commands at once take turns
    cd "$root" || exit
    # A folder that moved, or whose build was broken off early, starts afresh.
    if [[ -f "$build/CMakeCache.txt" ]] &&
      ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$build/CMakeCache.txt"; then
      rm -rf "$build/CMakeCache.txt" "$build/CMakeFiles"
    fi
    cmake --preset release
    cmake --build "$build" -j "$(build_jobs)" "${targets[@]}"
  ) 9>"$build/.lock"
}
