#!/usr/bin/env bash
# Builds the autograd library for 64-bit ARM and runs its tests under qemu. Installs the cross
# compiler and qemu if they are missing and it runs as root (or through sudo); fetches the arm64
# libraries from the Debian mirrors that apt knows into a folder of its own, so that the machine's
# packages stay as they are. May be run again: what is there is used.
#
#   scripts/aarch64.sh [--root DIR] [--build DIR] [ctest argument...]
#
# DIR of --root (default build/aarch64-root) takes the libraries, 150 MB; that of --build (default
# build/aarch64) the build. Without ctest arguments, all tests of autograd. Emulation is some ten to
# twenty times slower than the machine itself. Exits as ctest does; with 2 where something is missing.
set -euo pipefail
if [[ "${1:-}" == -h || "${1:-}" == --help ]]; then  # what stands above
  sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"
  exit 0
fi

# shellcheck source-path=SCRIPTDIR source=setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

arm_root="$root/build/aarch64-root"
arm_build="$root/build/aarch64"
while (($# > 0)); do
  case "$1" in
    --root) arm_root="$(realpath -m "${2:?--root needs a folder}")"; shift 2 ;;
    --build) arm_build="$(realpath -m "${2:?--build needs a folder}")"; shift 2 ;;
    *) break ;;
  esac
done
(($# > 0)) || set -- -R '^autograd'

readonly tools=(cmake ninja-build g++-aarch64-linux-gnu qemu-user-static)
readonly libraries=(libopenblas-openmp-dev libdnnl-dev libgtest-dev libgmock-dev nlohmann-json3-dev
  libeigen3-dev libgomp1 libstdc++6)

# apt with lists, cache and database below $1, for arm64 alone.
arm_apt() {
  local -r state="$1"
  shift
  apt-get -q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root \
    -o Dir::State="$state/state" -o Dir::State::status="$state/status" \
    -o Dir::Cache="$state/cache" "$@"
}

# Unpacks the libraries and what they depend on. A mark that names them says that they are all there.
make_root() {
  local -r mark="$arm_root/.complete" state="$arm_root/.apt"
  if [[ -f "$mark" && "$(<"$mark")" == "${libraries[*]}" ]]; then
    return
  fi
  rm -rf "$arm_root"
  mkdir -p "$state/state/lists/partial" "$state/cache/archives/partial"
  : >"$state/status"
  if ! arm_apt "$state" update ||
    ! arm_apt "$state" install -y --download-only --no-install-recommends "${libraries[@]}"; then
    fail 2 "the arm64 packages could not be fetched: ${libraries[*]}"
  fi
  local package
  for package in "$state"/cache/archives/*.deb; do
    dpkg-deb -x "$package" "$arm_root"
  done
  # qemu looks for libraries below the root only where links do not lead out of it.
  if [[ ! -e "$arm_root/lib/ld-linux-aarch64.so.1" ]]; then
    fail 1 "$arm_root has no dynamic loader"
  fi
  rm -rf "$state"
  echo "${libraries[*]}" >"$mark"
}

for tool in dpkg-query apt-get dpkg-deb; do
  command -v "$tool" >/dev/null || fail 2 "this is not Debian: there is no $tool"
done
install_packages "${tools[@]}"
make_root

cmake -S "$root" -B "$arm_build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_TOOLCHAIN_FILE="$root/cmake/Aarch64Toolchain.cmake" -DTAPESTRY_AARCH64_ROOT="$arm_root" \
  -DTAPESTRY_COMPONENTS=autograd -DTAPESTRY_BUILD_EXAMPLES=OFF
cmake --build "$arm_build" -j "$(build_jobs)"

exec ctest --test-dir "$arm_build" --output-on-failure --no-tests=error --timeout 7200 "$@"
