"""A Slurm cluster on this machine alone: munged, slurmctld and a few slurmd in a folder, on ports that
are free. Nothing of the system's own Slurm or munge is used or touched.

    with Cluster(folder, nodes=4) as cluster:
        cluster.run("sbatch", "job.sh")

The partitions low, spot and high are the same nodes: jobs of high preempt those of the others, of spot
with half a minute's grace. The partition apart has nodes of its own.

All processes of the cluster, jobs included, end with the program that made it, however that ends: a
process of its own waits for that.
"""

import contextlib
import getpass
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel", "sinfo")
SBIN = "/usr/sbin:/sbin"

CONFIGURATION = """\
ClusterName=tapestry
SlurmctldHost=localhost
SlurmctldPort={controller_port}
AuthType=auth/munge
# A job that was requeued waits until the credentials of its last start have expired: by default 120 s.
AuthInfo=socket={folder}/munge.socket,cred_expire=10
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool_%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd_%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd_%n.log
# Of each node, as of a machine of its own: the PMIx plugins of two steps would meet in /tmp.
TmpFS={folder}/tmp_%n
SlurmUser={user}
SlurmdUser={user}
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin={task_plugin}
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
ReturnToService=2
JobRequeue=0
KillWait=10
MinJobAge=600
SlurmdTimeout=60
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
{nodes}
PartitionName=low Nodes={main} Default=YES MaxTime=60 State=UP PriorityTier=1 GraceTime=0
PartitionName=spot Nodes={main} MaxTime=60 State=UP PriorityTier=1 GraceTime=30
PartitionName=high Nodes={main} MaxTime=60 State=UP PriorityTier=2 PreemptMode=OFF
PartitionName=apart Nodes={apart} MaxTime=60 State=UP PriorityTier=1
"""


def missing_programs():
    """Names of what a cluster needs and this machine does not have."""
    path = os.environ.get("PATH", "") + ":" + SBIN
    return [name for name in PROGRAMS if shutil.which(name, path=path) is None]


def free_ports(count):
    """Ports that nobody listens at, held until all of them are known."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def wait_for(what, condition, seconds=60.0, pause=0.1):
    """The first true value of condition(); TimeoutError, which says what was waited for, without one."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}")
        time.sleep(pause)


def processes_of(folder):
    """Ids of the processes whose environment names the cluster in the folder."""
    mark = f"TAPESTRY_CLUSTER={folder}".encode()
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def end_processes(folder):
    """Ends all processes of a cluster; what a step daemon starts meanwhile is found the next time."""
    for attempt in range(50):
        left = processes_of(folder)
        if not left:
            return
        for process in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGTERM if attempt == 0 else signal.SIGKILL)
        time.sleep(0.2)


def watch_over(folder):
    """Forks a process that ends the cluster when this program is gone. Returns the end of a pipe that
    must stay open meanwhile, and the process's id."""
    read_end, write_end = os.pipe()
    os.set_inheritable(write_end, False)
    child = os.fork()
    if child:
        os.close(read_end)
        return write_end, child
    os.setsid()
    os.close(write_end)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.read(read_end, 1)  # returns when the other end is closed
    end_processes(folder)
    os._exit(0)


class Cluster:
    """See the top of this file. `environment` is what its commands and jobs are started with."""

    def __init__(self, folder, nodes=4, apart=2, cpus=1, task_plugin="task/affinity"):
        self.folder = pathlib.Path(folder).resolve()
        self.main = [f"n{i + 1}" for i in range(nodes)]
        self.apart = [f"a{i + 1}" for i in range(apart)]
        self.names = self.main + self.apart
        self.cpus = cpus
        self.task_plugin = task_plugin
        self.environment = dict(os.environ)
        for name in list(self.environment):
            if name.startswith(("SLURM_", "SBATCH_", "SRUN_", "OMPI_", "PMIX_", "PMI_")):
                del self.environment[name]
        self.environment.update(
            PATH=os.environ.get("PATH", "") + ":" + SBIN,
            SLURM_CONF=str(self.folder / "slurm.conf"),
            TAPESTRY_CLUSTER=str(self.folder),
            XDG_CACHE_HOME=str(self.folder / "cache"),
            OMPI_MCA_btl_tcp_if_include="lo",
            OMPI_MCA_oob_tcp_if_include="lo",
            OMPI_ALLOW_RUN_AS_ROOT="1",
            OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
        )
        self.daemons = {}
        self.pipe = self.watcher = None

    def __enter__(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        self.pipe, self.watcher = watch_over(self.folder)
        try:
            self._configure()
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def _configure(self):
        ports = free_ports(1 + len(self.names))
        nodes = "\n".join(
            f"NodeName={name} NodeHostname=localhost Port={port} CPUs={self.cpus} State=UNKNOWN"
            for name, port in zip(self.names, ports[1:])
        )
        for name in ["state", *(f"tmp_{node}" for node in self.names)]:
            (self.folder / name).mkdir(exist_ok=True)
        (self.folder / "slurm.conf").write_text(
            CONFIGURATION.format(folder=self.folder, controller_port=ports[0], nodes=nodes,
                                 user=getpass.getuser(), task_plugin=self.task_plugin,
                                 main=",".join(self.main), apart=",".join(self.apart)))
        # What a system with cgroups would have found; there may be none here.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=autodetect\n")
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)

    def _start(self):
        folder = self.folder
        # "--force": the folder may lie below one that others may write.
        self.start_daemon("munged", "--foreground", "--force", "--num-threads=2",
                          f"--key-file={folder}/munge.key", f"--socket={folder}/munge.socket",
                          f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log",
                          f"--seed-file={folder}/munged.seed")
        wait_for("munged's socket", (folder / "munge.socket").exists)
        self.start_daemon("slurmctld", "-D", "-f", f"{folder}/slurm.conf")
        for name in self.names:
            self.start_node(name)
        wait_for("all nodes to be idle", self._all_idle)

    def _all_idle(self):
        for name, daemon in self.daemons.items():
            if daemon.poll() is not None:
                raise RuntimeError(f"{name} has ended with {daemon.returncode}: {self.log_of(name)}")
        result = self.try_run("sinfo", "--noheader", "--Node", "--partition=low,apart", "--format=%T")
        return result.returncode == 0 and result.stdout.split() == ["idle"] * len(self.names)

    def log_of(self, name):
        """The last lines of a daemon's log."""
        for ending in (".log", ".out"):
            with contextlib.suppress(OSError):
                text = (self.folder / (name + ending)).read_text(errors="replace")
                if text:
                    return "\n".join(text.splitlines()[-15:])
        return "(nothing logged)"

    def start_daemon(self, name, *options, label=None):
        label = label or name
        output = open(self.folder / f"{label}.out", "ab")
        self.daemons[label] = subprocess.Popen(
            [shutil.which(name, path=self.environment["PATH"]), *options], stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, env=self.environment, start_new_session=True)
        output.close()

    def start_node(self, name):
        self.start_daemon("slurmd", "-D", "-N", name, "-f", f"{self.folder}/slurm.conf",
                          label=f"slurmd_{name}")

    def try_run(self, *words, **options):
        return subprocess.run(words, env=self.environment, text=True, capture_output=True,
                              stdin=subprocess.DEVNULL, timeout=120, **options)

    def run(self, *words, **options):
        """What the command prints; RuntimeError with all of it where it fails."""
        result = self.try_run(*words, **options)
        if result.returncode != 0:
            raise RuntimeError(f"{' '.join(map(str, words))}: exit code {result.returncode}\n"
                               f"{result.stdout}{result.stderr}")
        return result.stdout

    def submit(self, *words, **options):
        """The job's number, which sbatch prints."""
        return int(re.search(r"\d+", self.run("sbatch", "--parsable", *words, **options))[0])

    def job(self, number):
        """What scontrol says of a job, by name."""
        return dict(re.findall(r"(\S+?)=(\S*)", self.run("scontrol", "--oneliner", "show", "job",
                                                         str(number))))

    def stop(self):
        """Ends all processes and waits for that."""
        if self.pipe is None:
            return
        os.close(self.pipe)
        self.pipe = None
        for daemon in self.daemons.values():
            daemon.wait()
        os.waitpid(self.watcher, 0)


def main():
    """cluster.py FOLDER: keeps a cluster until its standard input ends, for trying things by hand; then
    removes the folder."""
    with Cluster(sys.argv[1]) as cluster:
        for name in ("SLURM_CONF", "TAPESTRY_CLUSTER"):
            print(f"export {name}={cluster.environment[name]}", flush=True)
        sys.stdin.read()
    shutil.rmtree(sys.argv[1])


if __name__ == "__main__":
    main()
