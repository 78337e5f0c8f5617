#!/usr/bin/env bash
# Builds for 64-bit ARM and runs tests under qemu. Installs the cross compiler and qemu if they are
# missing and it runs as root (or through sudo); fetches the arm64 libraries from the Debian mirrors
# that apt knows into a folder of its own, so that the machine's packages stay as they are. May be run
# again: what is there is used.
#
#   scripts/aarch64.sh [--root DIR] [--build DIR] [--programs | --package] [ctest argument...]
#
# DIR of --root (default build/aarch64-root) takes the libraries, 750 MB; that of --build (default
# build/aarch64) the build. Builds the autograd library and its tests, and runs these, or those that the
# ctest arguments choose. With --programs: all programs, and trains a small model with them, under qemu
# and here, in exact mode, which must give the same hashes. With --package, besides: Debian packages for
# arm64, into DIR of --build; lintian looks at them, where it is installed, and the model is trained by the
# programs of the package, installed into a folder of its own. Emulation is some ten to twenty times slower
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
package=false
while (($# > 0)); do
  case "$1" in
    --root) arm_root="$(realpath -m "${2:?--root needs a folder}")"; shift 2 ;;
    --build) arm_build="$(realpath -m "${2:?--build needs a folder}")"; shift 2 ;;
    --programs) programs=true; shift ;;
    --package) programs=true; package=true; shift ;;
    *) break ;;
  esac
done
(($# > 0)) || set -- -R '^autograd'

tools=(cmake ninja-build g++-aarch64-linux-gnu qemu-user-static)
[[ $package == false ]] || tools+=(dpkg-dev file)
readonly tools
# What the whole project needs, but for its programs, which are the machine's own; and what packages of
# it depend on besides.
mapfile -t libraries < <(grep -E '^(lib|nlohmann)' "$root/packages.txt" && printf '%s\n' libgomp1 libstdc++6 libopenblas0)
readonly libraries database="$arm_root/dpkg"

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

# Begins a database of dpkg's below the root, for record_package.
start_database() {
  mkdir -p "$database/info" "$database/updates" "$database/triggers"
  : >"$database/status"
  echo 1 >"$database/info/format"
  printf '%s\n' "$(dpkg --print-architecture)" arm64 >"$database/arch"
}

# record_package FILE SCRATCH: enters the package as installed, its files where they lie here. From that
# dpkg-shlibdeps knows which package a library is of, and dpkg what is there to depend on.
record_package() {
  local name file
  name="$(dpkg-deb -f "$1" Package)"
  [[ "$(dpkg-deb -f "$1" Multi-Arch)" != same ]] || name+=:arm64
  rm -rf "$2"
  dpkg-deb -e "$1" "$2"
  for file in symbols shlibs; do
    [[ ! -f "$2/$file" ]] || cp "$2/$file" "$database/info/$name.$file"
  done
  dpkg-deb --fsys-tarfile "$1" | tar -t | sed "s|^\.||; s|/$||; s|^|$arm_root|" >"$database/info/$name.list"
  { dpkg-deb -f "$1" | sed '1a Status: install ok installed' && echo; } >>"$database/status"
}

# Unpacks the libraries and what they depend on. A mark that names them says that they are all there.
make_root() {
  local -r mark="$arm_root/.complete" state="$arm_root/.apt"
  if [[ -f "$mark" && -d "$database" && "$(<"$mark")" == "${libraries[*]}" ]]; then
    return
  fi
  rm -rf "$arm_root"
  mkdir -p "$state/state/lists/partial" "$state/cache/archives/partial"
  : >"$state/status"
  if ! arm_apt "$state" update ||
    ! arm_apt "$state" install -y --download-only --no-install-recommends "${libraries[@]}"; then
    fail 2 "the arm64 packages could not be fetched: ${libraries[*]}"
  fi
  start_database
  local deb
  for deb in "$state"/cache/archives/*.deb; do
    dpkg-deb -x "$deb" "$arm_root"
    record_package "$deb" "$state/control"
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

# compare_hashes NAME: those of that run are those of the run here.
compare_hashes() {
  if ! cmp "$arm_build"/trained/{"$1",here}/hashes.jsonl; then
    fail 1 "a run in exact mode has other hashes on aarch64: $arm_build/trained"
  fi
  echo "six steps in exact mode have the same hashes on aarch64 and here ($1)"
}

# build_programs: those of ARM, and one of this machine, which train alike.
build_programs() {
  local -r program=examples/gpt/pretrain_gpt
  cmake --build "$arm_build" -j "$(build_jobs)" --target programs
  set_up "Building here" pretrain_gpt
  train aarch64 qemu-aarch64-static -L "$arm_root" "$arm_build/$program"
  train here "$build/$program"
  compare_hashes aarch64
}

# build_package: Debian packages, and a training with what they install. dpkg installs one only where all
# that it depends on is there.
build_package() {
  local -r installed="$arm_build/installed" own_database="$arm_build/dpkg"
  rm -f "$arm_build"/*.deb
  cmake --build "$arm_build" -j "$(build_jobs)" --target packages
  if command -v lintian >/dev/null; then
    bash "$root/tests/packaging/lintian_test.sh" "$root" "$arm_build"
  else
    echo "lintian is not installed: the packages were not looked at"
  fi
  rm -rf "$installed" "$own_database"
  mkdir -p "$installed"
  cp -r "$database" "$own_database"
  local as_root=()
  ((EUID == 0)) || as_root=(unshare --map-root-user)
  "${as_root[@]}" dpkg --instdir="$installed" --admindir="$own_database" -i "$arm_build"/tapestry_*_arm64.deb
  train package qemu-aarch64-static -L "$arm_root" "$installed/usr/bin/pretrain_gpt"
  compare_hashes package
  ls -l "$arm_build"/*.deb
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
  [[ $package == false ]] || build_package
  exit
fi
cmake --build "$arm_build" -j "$(build_jobs)"

exec ctest --test-dir "$arm_build" --output-on-failure --no-tests=error --timeout 7200 "$@"
