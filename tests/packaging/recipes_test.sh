#!/usr/bin/env bash
# recipes_test.sh SOURCE BUILD: what other programs are to install Tapestry by: the module file, Spack's
# recipe, the Containerfile.
set -euo pipefail
source_root="$1" build="$2"
# shellcheck source-path=SCRIPTDIR source=checks.sh
source "$(dirname "${BASH_SOURCE[0]}")/checks.sh"
version="$(sed -n 's/^project(Tapestry VERSION \([0-9.]*\).*/\1/p' "$source_root/CMakeLists.txt")"

# The module file names where it was installed; a shell of Tcl, or the real thing, reads it.
prefix="$scratch/a prefix"
cmake --install "$build" --component programs --prefix "$prefix" >/dev/null
module="$prefix/share/tapestry/modulefiles/tapestry/$version"
if has tclsh "the module file"; then
  said="$(tclsh "$here/read_module.tcl" "$module" 2>&1)" || fail "tclsh: $said"
  for line in "setenv TAPESTRY_ROOT $prefix" "prepend-path PATH $prefix/bin" "prepend-path CMAKE_PREFIX_PATH $prefix" \
    "prepend-path XDG_DATA_DIRS $prefix/share" "conflict tapestry" "help Tapestry $version"; do
    grep -qF -- "$line" <<<"$said" || fail "the module file does not say '$line':"$'\n'"$said"
  done
  for folder in bin share/bash-completion/completions share/man/man1; do
    [[ -d "$prefix/$folder" ]] || fail "the module file leads to $folder, which is not installed"
  done
  fpath="$(sed -n 's/^prepend-path FPATH //p' <<<"$said")"
  [[ -s "$fpath/_pretrain_gpt" ]] || fail "there are no completions for zsh in $fpath"
else
  grep -qxF "set prefix {$prefix}" "$module" || fail "the module file does not name $prefix"
fi

# Spack's recipe: Python, of this version, and only with variables that the build has.
recipe="$source_root/packaging/spack/packages/tapestry/package.py"
if has python3 "Spack's recipe as Python"; then
  python3 - "$recipe" <<'PYTHON' || fail "the recipe is no Python"
import ast
import sys
ast.parse(open(sys.argv[1]).read(), sys.argv[1])
PYTHON
fi
grep -qF "version(\"$version\"" "$recipe" || fail "Spack's recipe has not the version $version"
while read -r variable; do
  grep -qE "^$variable:|^[^#]*\b$variable\b" "$build/CMakeCache.txt" "$source_root/CMakeLists.txt" \
    "$source_root"/cmake/*.cmake || fail "Spack's recipe sets $variable, which the build does not know"
done < <(grep -o 'TAPESTRY_[A-Z_]*' "$recipe" | grep -v TAPESTRY_ROOT | sort -u)

# The Containerfile: its first stage says what README.md's commands do; its second one is run by the
# test packages.root, which takes single lines.
file="$source_root/packaging/Containerfile"
! grep -n '\\$' "$file" || fail "a step of the Containerfile is longer than its line"
grep -qxF 'RUN cmake --build /build --target packages' "$file" || fail "the Containerfile makes no package"
[[ "$(grep -c '^FROM debian:12' "$file")" == 2 ]] || fail "the Containerfile has not two stages of Debian 12"
finish
