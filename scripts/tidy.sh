#!/usr/bin/env bash
# Runs clang-tidy with the profile of .clang-tidy.
#   scripts/tidy.sh FILE.cpp...   these files
#   scripts/tidy.sh               the .cpp files that differ from origin/main or, without it, main
#   scripts/tidy.sh --all         every compiled file
# Configures the folder build/tidy for it, in which nothing is built.
set -euo pipefail
if [[ "${1:-}" == -h || "${1:-}" == --help ]]; then  # what stands above
  sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"
  exit 0
fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build=build/tidy
command -v clang-tidy >/dev/null || {
  echo "tidy.sh: clang-tidy is missing: apt-get install clang-tidy" >&2
  exit 2
}
# Every source by itself and without precompiled headers, which clang-tidy cannot read from GCC.
cmake --preset release -B "$build" -DTAPESTRY_UNITY=OFF -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON >/dev/null

# What is compiled, without the kernels that are built once per instruction-set level: their
# intrinsics and macros are not code that the profile is made for.
mapfile -t compiled < <(sed -n 's|^ *"file": "\(.*\)",\{0,1\}$|\1|p' "$build/compile_commands.json" |
  sed "s|^$PWD/||" | grep -v '/kernels/isa/' | sort -u)
if [[ "${1:-}" == --all ]]; then
  wanted=("${compiled[@]}")
elif (($# > 0)); then
  wanted=("$@")
else
  base=main
  git rev-parse -q --verify origin/main >/dev/null && base=origin/main
  mapfile -t wanted < <({
    git diff --name-only --diff-filter=d "$(git merge-base "$base" HEAD)" -- '*.cpp'
    git ls-files --others --exclude-standard '*.cpp'
  } | sort -u)
fi

declare -A is_compiled=()
for file in "${compiled[@]}"; do
  is_compiled["$file"]=1
done
files=()
for file in "${wanted[@]}"; do
  if [[ -n "${is_compiled["$file"]:-}" ]]; then
    files+=("$file")
  else
    echo "tidy.sh: $file is passed over: not compiled in $build, or a file of kernels/isa" >&2
  fi
done
((${#files[@]} > 0)) || exit 0
# The build is GCC's, with options that clang-tidy does not know.
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" clang-tidy -p "$build" --quiet \
  --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wno-unused-command-line-argument
