#!/usr/bin/env bash
# Runs clang-tidy with the profile of .clang-tidy.
#   scripts/tidy.sh FILE.cpp...   these files
#   scripts/tidy.sh               the .cpp files that differ from origin/main or, without it, main
#   scripts/tidy.sh --all         every compiled file
# The build folder (TIDY_BUILD, default build/release) has to be configured.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build="${TIDY_BUILD:-build/release}"
command -v clang-tidy >/dev/null || {
  echo "tidy.sh: clang-tidy is missing: apt-get install clang-tidy" >&2
  exit 2
}
if [[ ! -f "$build/compile_commands.json" ]]; then
  echo "tidy.sh: $build is not configured: cmake --preset $(basename "$build")" >&2
  exit 2
fi

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

files=()
for file in "${wanted[@]}"; do
  if printf '%s\n' "${compiled[@]}" | grep -qxF -- "$file"; then
    files+=("$file")
  else
    echo "tidy.sh: $file is passed over: not compiled in $build, or a file of kernels/isa" >&2
  fi
done
((${#files[@]} > 0)) || exit 0
# The build may be GCC's, with warning options that clang-tidy does not know and precompiled headers
# that it cannot read: the commands without these.
commands="$(mktemp -d)"
trap 'rm -rf "$commands"' EXIT
sed 's| -Winvalid-pch||; s| -include [^ ]*/cmake_pch\.hxx||' "$build/compile_commands.json" \
  > "$commands/compile_commands.json"
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" clang-tidy -p "$commands" --quiet \
  --extra-arg=-Wno-unknown-warning-option
