# shellcheck shell=bash
# enter_root.sh ROOT STEPS USER FOLDER: of root_test.sh, inside namespaces of its own: runs the steps
# in the root, a line each, then in_root.sh as the user.
set -euo pipefail
root="$1" steps="$2" user="$3" folder="$4"
mount --make-rprivate /
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
! command -v ip >/dev/null || ip link set lo up # ranks on one host talk over it
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
start=$SECONDS
while IFS= read -r step; do
  chroot "$root" sh -ec "$step" </dev/null >"$root/step.log" 2>&1 || {
    echo "FAILED: $step" >&2
    cat "$root/step.log" >&2
    exit 1
  }
done <"$steps"
echo "installed in $((SECONDS - start)) s"
start=$SECONDS
# shellcheck disable=SC2016  # it is expanded there
chroot --userspec="$user" "$root" env -i HOME="$folder" PATH="$PATH" LC_ALL=C.UTF-8 \
  bash -c 'cd "$HOME" && bash /in_root.sh' </dev/null
echo "trained in $((SECONDS - start)) s"
