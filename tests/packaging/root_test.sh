#!/usr/bin/env bash
# root_test.sh SOURCE OUT CACHE: the steps of the second stage of packaging/Containerfile in a bare
# Debian 12 without compiler and without network, with the package in OUT; then the model of the quick
# start trains there. What has to be fetched is fetched before, once, and kept in CACHE.
set -euo pipefail
source_root="$1" out="$2" cache="$3"
skip() {
  echo "skipped: $*" >&2
  exit 77
}
((EUID == 0)) || skip "this test needs root, for chroot"
package="$(echo "$out"/tapestry_*.deb)"
[[ "$package" == *"_$(dpkg --print-architecture).deb" ]] || skip "$package is for another processor"
command -v debootstrap >/dev/null || skip "debootstrap is missing: apt-get install debootstrap"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
mkdir -p "$cache"
# shellcheck disable=SC2016  # $0 is the folder
unshare --net --mount --pid --fork sh -c 'mount --make-rprivate / && mount -t proc proc "$0"' "$cache" 2>/dev/null ||
  skip "namespaces of its own, or mounts in them, are not allowed here (unshare)"
work="$(mktemp -d "$cache/run.XXXXXX")"
trap 'rm -rf "$work"' EXIT
root="$work/root"
mkdir "$root"

# containerfile WORD: the words behind it in the last stage, a line each.
containerfile() {
  awk -v word="$1" '$1 == "FROM" { count = 0 } $1 == word { sub(/^[A-Z]+ /, ""); lines[count++] = $0 }
    END { for (i = 0; i < count; ++i) print lines[i] }' "$source_root/packaging/Containerfile"
}
mapfile -t steps < <(containerfile RUN)
install="$(printf '%s\n' "${steps[@]}" | grep '^apt-get install ')"

mirror() { # the one that apt is set up with here
  local found
  # shellcheck disable=SC2016  # apt's own
  found="$(apt-get indextargets --format '$(REPO_URI)' 'Codename: bookworm' 'Label: Debian' 2>/dev/null | head -n 1)"
  echo "${found:-http://deb.debian.org/debian/}"
}

# bare_root: in $root, from the cache or by debootstrap.
bare_root() {
  local -r base="$cache/bookworm.tar"
  if [[ ! -f "$base" ]]; then
    local proxy=""
    eval "$(apt-config shell proxy Acquire::http::Proxy 2>/dev/null)"
    [[ -z "$proxy" ]] || export http_proxy="$proxy"
    debootstrap --variant=minbase bookworm "$root" "$(mirror)" >"$cache/debootstrap.log" 2>&1 ||
      skip "no bare Debian 12 could be made: $(tail -n 1 "$cache/debootstrap.log")"
    rm -f "$root"/var/cache/apt/archives/*.deb
    tar -C "$root" -cf "$base.new" .
    mv "$base.new" "$base"
  else
    tar -C "$root" -xf "$base"
  fi
  # A root that is thrown away need not outlive a power cut.
  echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/test"
  mkdir "$root/packages"
  cp "$package" "$root/packages/"
}

# fetch_dependencies: into the root's archives and into the cache.
fetch_dependencies() {
  local -r archives="$root/var/cache/apt/archives" lists="$root/var/lib/apt/lists"
  mkdir -p "$cache/archives" "$cache/lists"
  cp -a "$cache/archives/." "$archives/"
  cp -a "$cache/lists/." "$lists/"
  cp /etc/resolv.conf "$root/etc/resolv.conf"
  apt-config dump Acquire::http Acquire::https >"$root/etc/apt/apt.conf.d/90host" 2>/dev/null || true
  if ! chroot "$root" sh -c "$install --download-only --no-download" >"$cache/fetch.log" 2>&1; then
    chroot "$root" sh -c "apt-get update && $install --download-only" >"$cache/fetch.log" 2>&1 ||
      skip "the dependencies could not be fetched: $(tail -n 1 "$cache/fetch.log")"
    cp -a "$archives/." "$cache/archives/"
    cp -a "$lists/." "$cache/lists/"
  fi
  rm "$root/etc/resolv.conf" "$root/etc/apt/apt.conf.d/90host"
}

bare_root
fetch_dependencies
containerfile RUN >"$work/steps"
cp "$here/in_root.sh" "$root/in_root.sh"
# Of its own: network (nothing but a loopback), mounts and processes, all of which end with it.
unshare --net --mount --pid --fork --kill-child bash "$here/enter_root.sh" "$root" "$work/steps" \
  "$(containerfile USER)" "$(containerfile WORKDIR)"
