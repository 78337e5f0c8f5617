# Two hosts on one machine, for tests that source this file: namespaces of their own for network, host
# name, mounts (with /dev/shm) and IPC, joined by a bridge that is the switch. All of it lies inside
# outer namespaces that end with the test, however that ends: no process, mount or link outlives it.

# in_namespaces SCRIPT ARGUMENT...: returns inside the outer namespaces; outside starts the script again
# there. Exit code 77 (skipped) where this machine allows no namespaces.
in_namespaces() {
  [[ -z "${TAPESTRY_NAMESPACES:-}" ]] || return 0
  local outer=(unshare --net --mount --ipc --pid --fork --kill-child --mount-proc) tool
  ((EUID == 0)) || outer=(unshare --user --map-root-user "${outer[@]:1}")
  for tool in unshare nsenter ip tc; do
    command -v "$tool" >/dev/null || skip "$tool is missing: apt-get install iproute2 util-linux"
  done
  "${outer[@]}" ip link add probe type bridge 2>/dev/null ||
    skip "this machine allows no network namespaces with a bridge"
  export TAPESTRY_NAMESPACES=1
  exec "${outer[@]}" bash "$@"
}

skip() {
  echo "SKIPPED: $*"
  exit 77
}

# make_host NAME ADDRESS: a host, known to run_on and to start_rank.sh by the process that holds it.
make_host() {
  local name="$1" address="$2" ready="$hosts/$1.ready" pid
  mkfifo "$ready"
  unshare --net --uts --mount --ipc bash -c '
    hostname "$1" && mount -t tmpfs none /dev/shm && mount --bind "$2/etc_hosts" /etc/hosts &&
      mount --bind "$2/boot_$1" /proc/sys/kernel/random/boot_id && ip link set lo up
    echo "$?" >"$3"
    exec sleep infinity' holder "$name" "$hosts" "$ready" &
  pid=$!
  [[ "$(cat "$ready")" == 0 ]] || skip "this machine does not let a test make hosts"
  echo "$pid" >"$hosts/$name"
  ip link add "to_$name" type veth peer name eth0 netns "$pid"
  ip link set "to_$name" master switch up
  nsenter -t "$pid" --net ip address add "$address/24" dev eth0
  nsenter -t "$pid" --net ip link set eth0 up
}

# make_hosts FOLDER: alpha and beta, whose files are in the folder.
make_hosts() {
  hosts="$1"
  export TAPESTRY_HOSTS="$hosts"
  mkdir -p "$hosts"
  printf '%s\n' "127.0.0.1 localhost" "10.77.0.1 alpha" "10.77.0.2 beta" >"$hosts/etc_hosts"
  local name
  for name in alpha beta; do
    cat /proc/sys/kernel/random/uuid >"$hosts/boot_$name" # by which libraries know a machine
  done
  ip link set lo up
  ip link add switch type bridge forward_delay 0
  ip link set switch up
  make_host alpha 10.77.0.1
  make_host beta 10.77.0.2
}

# run_on HOST COMMAND...
run_on() {
  local pid
  pid="$(cat "$hosts/$1")"
  shift
  nsenter -t "$pid" --net --uts --mount --ipc --wd="$PWD" -- "$@"
}

# processes_on HOST: what runs there beside its holder.
processes_on() {
  local pid holder own
  holder="$(cat "$hosts/$1")"
  own="$(readlink "/proc/$holder/ns/uts")"
  for pid in /proc/[0-9]*; do
    pid="${pid#/proc/}"
    if [[ "$pid" != "$holder" && "$(readlink "/proc/$pid/ns/uts" 2>/dev/null)" == "$own" ]]; then
      echo "$pid $(tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null)"
    fi
  done
}

# The cable between a host and the switch: out, in, slow.
cut_link() { ip link set "to_$1" down; }
mend_link() { ip link set "to_$1" up; }
slow_link() { # HOST RATE, as tc has it
  tc qdisc replace dev "to_$1" root tbf rate "$2" burst 16k latency 10s
  nsenter -t "$(cat "$hosts/$1")" --net tc qdisc replace dev eth0 root tbf rate "$2" burst 16k latency 10s
}
mend_speed() {
  tc qdisc delete dev "to_$1" root
  nsenter -t "$(cat "$hosts/$1")" --net tc qdisc delete dev eth0 root
}
