#!/usr/bin/env bash
# Runs a GGUF file in llama.cpp, by way of node-llama-cpp, which npm fetches once: 85 MB, with
# llama.cpp compiled for this kind of processor. Wants Node.js 20 or later and npm; later runs need no
# network.
#
#   scripts/llama_cpp.sh --fetch
#   scripts/llama_cpp.sh FILE.gguf [--lora ADAPTER.gguf] --prompt TEXT [--tokens N]
#   scripts/llama_cpp.sh FILE.gguf [--lora ADAPTER.gguf] --compare DIR --bound P [--forgive P] [--lines]
#
# The second form continues the text greedily by N tokens (100). The third compares with what the
# program llama_cpp_expect has written of our own model: probabilities of each next token may differ
# by P; greedy texts may part where our two likeliest tokens are nearer to each other than --forgive
# (P unless given); with --lines, texts must have the same ids. --cache DIR says where the library is
# kept (TAPESTRY_LLAMA_CPP, else ~/.cache/tapestry/llama_cpp).
#
# Exits with 77 where Node.js, npm or the registry is missing, with 1 where something differs.
set -euo pipefail
if [[ $# -eq 0 || "$1" == -h || "$1" == --help ]]; then  # what stands above
  sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"
  exit 0
fi
readonly version=3.22.1
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

cache="${TAPESTRY_LLAMA_CPP:-$HOME/.cache/tapestry/llama_cpp}"
words=()
while (($# > 0)); do
  case "$1" in
    --cache) cache="${2:?--cache needs a folder}"; shift 2 ;;
    *) words+=("$1"); shift ;;
  esac
done

missing() {
  echo "llama_cpp.sh: skipped: $1" >&2
  exit 77
}
command -v node >/dev/null || missing "there is no Node.js (node)"
major="$(node --version)" major="${major#v}" major="${major%%.*}"
((major >= 20)) || missing "Node.js is $(node --version), 20 or later is needed"
[[ "$(uname -sm)" == "Linux x86_64" ]] || missing "the library is fetched for Linux on x86-64"

mkdir -p "$cache"
cache="$(cd "$cache" && pwd)"
(
  flock 9  # of several runs at once, one fetches
  [[ ! -f "$cache/fetched-$version" ]] || exit 0
  command -v npm >/dev/null || missing "there is no npm"
  if ! (cd "$cache" && timeout 300 npm install --no-audit --no-fund --omit=optional --ignore-scripts \
    --fetch-retries=1 "node-llama-cpp@$version" "@node-llama-cpp/linux-x64@$version" >npm.log 2>&1); then
    missing "npm cannot fetch node-llama-cpp $version, see $cache/npm.log"
  fi
  touch "$cache/fetched-$version"
) 9>"$cache/lock"
[[ "${words[0]:-}" != --fetch ]] || exit 0
LLAMA_CPP_CACHE="$cache" exec node "$here/llama_cpp.mjs" "${words[@]}"
