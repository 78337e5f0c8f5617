#!/usr/bin/env bash
# PyTorch 2.6 (oneDNN 3.7) of Debian 13, in a directory tree of its own beside Debian 12's 1.13: the
# newer peer of compare.py.
#
#   debian13.sh ROOT                      makes ROOT if it is not complete: once, as root, with
#                                         debootstrap (apt-get install debootstrap); some minutes, 3 GiB
#   debian13.sh ROOT PROGRAM ARGUMENT...  runs python3 PROGRAM there, one of this folder or an option
#                                         such as -c; the environment is the caller's
#
# Tools that torch.compile needs (a C++ compiler, Python's and PyTorch's headers) are installed too.
set -euo pipefail

fail() {
  echo "debian13.sh: $*" >&2
  exit 2
}

(($# >= 1)) || fail "expected the directory of the root as first argument"
root=$1
shift
((EUID == 0)) || fail "needs root rights, for chroot"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
complete=$root/.complete
packages=(python3-torch python3-numpy python3-dev python3-setuptools libtorch-dev
  libopenblas0-openmp g++)

if [[ ! -e $complete ]]; then
  command -v debootstrap >/dev/null || fail "debootstrap is missing: apt-get install debootstrap"
  if [[ ! -x $root/usr/bin/apt-get || -e $root/debootstrap ]]; then
    debootstrap --variant=minbase --include=ca-certificates,python3 trixie "$root" >&2
  fi
  chroot "$root" apt-get update --quiet >&2
  DEBIAN_FRONTEND=noninteractive chroot "$root" apt-get install --yes --quiet \
    --no-install-recommends "${packages[@]}" >&2
  touch "$complete"
fi
(($# > 0)) || exit 0

# PyTorch reads the number of processors from /proc and compiles in /tmp.
mountpoint --quiet "$root/proc" || mount --bind /proc "$root/proc"
install -d "$root/bench"
install -m 644 "$here"/torch_*.py "$root/bench/"
# Libraries of the caller's system have no place there.
unset LD_LIBRARY_PATH
case $1 in
  -*) exec chroot "$root" /usr/bin/python3 "$@" ;;
  *) exec chroot "$root" /usr/bin/python3 "/bench/$1" "${@:2}" ;;
esac
