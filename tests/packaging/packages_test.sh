#!/usr/bin/env bash
# packages_test.sh SOURCE BUILD OUT: `cpack` into the folder OUT, where later tests find the packages;
# what is in them, and what is not.
set -euo pipefail
source_root="$1" build="$2" out="$3"
command -v dpkg-deb dpkg-shlibdeps >/dev/null || {
  echo "skipped: dpkg-dev is missing" >&2
  exit 77
}
failures=0
fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

rm -rf "$out"
mkdir -p "$out"
cpack --config "$build/CPackConfig.cmake" -B "$out" >"$out/cpack.log" 2>&1 || {
  cat "$out/cpack.log" >&2
  exit 1
}
rm -rf "$out/_CPack_Packages"
version="$(sed -n 's/^project(Tapestry VERSION \([0-9.]*\).*/\1/p' "$source_root/CMakeLists.txt")"
architecture="$(sed -n 's/^set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE "\(.*\)")/\1/p' "$build/CPackConfig.cmake")"
grep -q '^CMAKE_TOOLCHAIN_FILE' "$build/CMakeCache.txt" || [[ "$architecture" == "$(dpkg --print-architecture)" ]] ||
  fail "the packages are for '$architecture', this machine is $(dpkg --print-architecture)"
main="$out/tapestry_${version}_$architecture.deb"
dev="$out/libtapestry-dev_${version}_$architecture.deb"
[[ -f "$main" && -f "$dev" ]] || {
  fail "cpack made $(cd "$out" && echo *), expected ${main##*/} and ${dev##*/}"
  exit 1
}
ls -l "$main" "$dev"
dpkg-deb -x "$main" "$out/main"
dpkg-deb -x "$dev" "$out/dev"
trap 'rm -rf "$out/main" "$out/dev"' EXIT

# Every program with its man page and completions; what the launcher and the pages look for.
for program in "$out"/main/usr/bin/*; do
  name="${program##*/}"
  for file in "man/man1/$name.1.gz" "bash-completion/completions/$name" "zsh/vendor-completions/_$name"; do
    [[ -s "$out/main/usr/share/$file" ]] || fail "$name has no /usr/share/$file"
  done
done
for file in bin/pretrain_gpt bin/pretrain_gpt_diagnosis bin/generate bin/finetune_gpt bin/pretrain_gpt.sh \
  share/tapestry/pretrain_gpt_tiny.yaml share/doc/tapestry/docs/start.md share/doc/tapestry/copyright \
  share/doc/tapestry/examples/gpt/own_model.cpp share/man/man5/pretrain_gpt.yaml.5.gz; do
  [[ -s "$out/main/usr/$file" ]] || fail "${main##*/} lacks /usr/$file"
done
for file in include/tapestry/tapestry.h include/tapestry/nn/module.h lib/cmake/Tapestry/TapestryConfig.cmake; do
  [[ -s "$out/dev/usr/$file" ]] || fail "${dev##*/} lacks /usr/$file"
done
[[ -n "$(find "$out/dev/usr/lib" -name 'libtapestry_*.a')" ]] || fail "${dev##*/} has no libraries"
both="$(comm -12 <(cd "$out/main" && find . -type f | sort) <(cd "$out/dev" && find . -type f | sort))"
[[ -z "$both" ]] || fail "both packages have $both"

# Dependencies with their versions; of the libraries all that CMake looks for where they are used.
depends="$(dpkg-deb -f "$main" Depends)"
for package in 'libc6 (>=' 'libdnnl2' 'libopenblas0-openmp' 'libboost-program-options' 'libgomp1 (>='; do
  [[ "$depends" == *"$package"* ]] || fail "${main##*/} does not depend on $package: $depends"
done
[[ "$depends" == *openmpi-bin* || "$depends" == *mpich* ]] || fail "${main##*/} brings no mpirun: $depends"
depends=", $(dpkg-deb -f "$dev" Depends),"
# shellcheck disable=SC2016  # the variables are CMake's
while read -r package; do
  [[ "$depends" == *" $package,"* || ("$package" == lib*mpi*-dev && "$depends" == *mpi*-dev*) ]] ||
    fail "cmake/TapestryComponents.cmake looks for $package, which ${dev##*/} does not depend on"
done < <(sed -n 's/.*tapestry_find_dependency(${missing_out} \([a-z0-9-]*\) .*/\1/p
  s/.*APPEND ${missing_out} \([a-z0-9-]*\)).*/\1/p' "$source_root/cmake/TapestryComponents.cmake" |
  grep -vxE 'libc6-dev|g\+\+')
[[ "$depends" == *" libpcre2-dev, libsentencepiece-dev,"* ]] || fail "of pkg-config's names: $depends"

# A build with this machine's CPU level alone, as the quick start makes it, is refused.
sed 's/^set(CPACK_TAPESTRY_CPU_LEVELS .*/set(CPACK_TAPESTRY_CPU_LEVELS "native")/' "$build/CPackConfig.cmake" >"$out/native.cmake"
if [[ "$architecture" == amd64 ]]; then
  ! cpack --config "$out/native.cmake" -B "$out/native" >"$out/native.log" 2>&1 || fail "a build for one processor is packed"
  grep -q "TAPESTRY_CPU_LEVELS is 'native'" "$out/native.log" || fail "said of it: $(<"$out/native.log")"
fi

# Nothing of the machine that built: its folders, its compiler's debug data.
for root in "$source_root" "$build"; do
  found="$(grep -rlF "$root/" "$out/main" "$out/dev" || true)"
  [[ -z "$found" ]] || fail "these have the name of the build machine's folder $root:"$'\n'"$found"
done
for program in "$out"/main/usr/bin/*; do
  [[ "$program" == *.sh ]] || [[ "$(file -b "$program")" == *", stripped" ]] || fail "${program##*/} is not stripped"
done
exit $((failures > 0))
