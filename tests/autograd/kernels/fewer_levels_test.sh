#!/usr/bin/env bash
# fewer_levels_test.sh COMPILER ROOT: what chooses between the kernels' CPU levels compiles where the
# build has fewer of them (TAPESTRY_CPU_LEVELS), the portable one alone at last.
set -euo pipefail
compiler=$1 root=$2
units=$(mktemp -d)
trap 'rm -rf "$units"' EXIT
cd "$root"
# One unit a folder, in which names of unnamed namespaces differ.
while read -r source; do
  folder=${source%/*}
  echo "#include \"$source\"" >> "$units/${folder//\//_}.cpp"
done < <(grep -rl TAPESTRY_DISPATCH autograd/kernels --include='*.cpp' | grep -v /isa/ | sort)
failed=0
without=()
for level in AVX512_BF16 AVX512 AVX2; do
  without+=("-DTAPESTRY_WITHOUT_$level")
  "$compiler" -std=c++20 -fsyntax-only "${without[@]}" -I. \
    "-I/usr/include/$("$compiler" -dumpmachine)/openblas-openmp" "$units"/*.cpp 2> "$units/log" || {
    echo "does not compile with ${without[*]}:"
    head -20 "$units/log"
    failed=1
  }
done
exit $failed
