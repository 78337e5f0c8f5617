#!/usr/bin/env bash
# Builds for 64-bit ARM and runs tests under qemu. Installs the cross compiler and qemu if they are
# missing and it runs as root (or through sudo); fetches the arm64 libraries from the Debian mirrors
# that apt knows into a folder of its own, so that the machine's packages stay as they are. May be run
# again: what is there is used.
#
#   scripts/aarch64.sh [--root DIR] [--build DIR] [--programs] [ctest argument...]
#
# DIR of --root (default build/aarch64-root) takes the libraries, 750 MB; that of --build (default
# build/aarch64) the build. Builds the autograd library and its tests, and runs these, or those that the
# ctest arguments choose. With --programs: all programs, and trains a small model with them, under qemu
# and here, in exact mode, which must give the same hashes. Emulation is some ten to twenty times slower
# than the machine itself. Exits as ctest does; with 1 where hashes differ, with 2 where something is
# missing.
set -euo pipefail
if [[ "${1:-}" == -h || "${1:-}" == --help ]]; then  # what stands above
  sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"
  exit 0
fi

# shellcheck source-path=SCRIPTDIR source=setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

arm_root="$root/build/aarch64-root"
arm_build="$root/build/aarch64"
programs=false
while (($# > 0)); do
  case "$1" in
    --root) arm_root="$(realpath -m "${2:?--root needs a folder}")"; shift 2 ;;
    --build) arm_build="$(realpath -m "${2:?--build needs a folder}")"; shift 2 ;;
    --programs) programs=true; shift ;;
    *) break ;;
  esac
done
(($# > 0)) || set -- -R '^autograd'

readonly tools=(cmake ninja-build g++-aarch64-linux-gnu qemu-user-static)
# What the whole project needs, but for its programs, which are the machine's own.
mapfile -t libraries < <(grep -E '^(lib|nlohmann)' "$root/packages.txt" && printf '%s\n' libgomp1 libstdc++6)
readonly libraries

# apt with lists, cache and database below $1, for arm64 alone.
arm_apt() {
  local -r state="$1"
  shift
  apt-get -q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root \
    -o Dir::State="$state/state" -o Dir::State::status="$state/status" \
    -o Dir::Cache="$state/cache" "$@"
}

# CMake asks Open MPI's compiler for its options.
write_mpicxx() {
  local -r folder="$arm_root/usr/lib/aarch64-linux-gnu/openmpi"
  local -r compile="-I$folder/include -DOMPI_SKIP_MPICXX" link="-L$folder/lib -lmpi"
  cat >"$arm_root/mpicxx" <<SCRIPT
#!/bin/sh
case "\$1" in
  -showme:compile) echo "$compile" ;;
  -showme:link) echo "$link" ;;
  *) exec aarch64-linux-gnu-g++ $compile "\$@" $link ;;
esac
SCRIPT
  chmod +x "$arm_root/mpicxx"
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
  write_mpicxx
  rm -rf "$state"
  echo "${libraries[*]}" >"$mark"
}

for tool in dpkg-query apt-get dpkg-deb; do
  command -v "$tool" >/dev/null || fail 2 "this is not Debian: there is no $tool"
done
install_packages "${tools[@]}"
make_root

# train NAME COMMAND...: six steps of a small model, with a hash of each.
train() {
  local -r name="$1"
  shift
  rm -rf "$arm_build/trained/$name"
  "$@" --config_path "$root/examples/gpt/pretrain_gpt_char.yaml" \
    --set "training_config.output_dir=$arm_build/trained/$name" \
    --set "dataset_config.text=[$root/docs/parallel.md]" --set training_config.exact=True \
    --set training_config.training_iters=6 --set optimizer_config.lr_warmup_iters=1 \
    --set training_config.eval_interval=100 --set model_config.num_layers=2 \
    --set dataset_config.batch_size=2
}

# build_programs: those of ARM, and one of this machine, which train alike.
build_programs() {
  local -r program=examples/gpt/pretrain_gpt
  cmake --build "$arm_build" -j "$(build_jobs)" --target programs
  set_up "Building here" pretrain_gpt
  train aarch64 qemu-aarch64-static -L "$arm_root" "$arm_build/$program"
  train here "$build/$program"
  if ! cmp "$arm_build"/trained/{aarch64,here}/hashes.jsonl; then
    fail 1 "a run in exact mode has other hashes on aarch64: $arm_build/trained"
  fi
  echo "six steps in exact mode have the same hashes on aarch64 and here"
}

components=(-DTAPESTRY_COMPONENTS=autograd -DTAPESTRY_BUILD_EXAMPLES=OFF)
if [[ $programs == true ]]; then
  components=(-UTAPESTRY_COMPONENTS -DTAPESTRY_BUILD_EXAMPLES=ON)
fi
cmake -S "$root" -B "$arm_build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_TOOLCHAIN_FILE="$root/cmake/Aarch64Toolchain.cmake" -DTAPESTRY_AARCH64_ROOT="$arm_root" \
  "${components[@]}"
if [[ $programs == true ]]; then
  build_programs
  exit
fi
cmake --build "$arm_build" -j "$(build_jobs)"

exec ctest --test-dir "$arm_build" --output-on-failure --no-tests=error --timeout 7200 "$@"
