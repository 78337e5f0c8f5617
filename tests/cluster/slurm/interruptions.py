"""What happens to jobs on a cluster, done to a job of the test's cluster."""

import contextlib
import os
import pathlib
import shutil
import signal

from cluster import processes_of, wait_for


def requeue(cluster, number, _output):
    """scontrol requeue, as a user or an administrator."""
    cluster.run("scontrol", "requeue", str(number))


def preempt(cluster, number, _output):
    """A job of a higher partition takes all nodes."""
    other = cluster.submit("--partition=high", "--nodes=4", "--exclusive", "--output=/dev/null",
                           "--wrap=sleep 0.5", cwd=cluster.folder)
    wait_for("the job of the higher partition", lambda: cluster.job(other)["JobState"] == "COMPLETED")


def warn(cluster, number, _output):
    """The signal that --signal=B:USR1@60 sends before the end of the time."""
    cluster.run("scancel", "--batch", "--signal=USR1", str(number))


def kill_rank(cluster, number, _output):
    """The job's only rank is killed, for lack of memory for example; the script puts the job back."""
    end_ranks(cluster, {"SLURM_JOB_ID": str(number)})


def end_ranks(cluster, variables):
    """Kills all processes pretrain_gpt that srun has started with these variables."""
    wanted = {f"{name}={value}".encode() for name, value in variables.items()}
    victims = []
    for process in processes_of(cluster.folder):
        with contextlib.suppress(OSError):
            proc = pathlib.Path("/proc") / str(process)
            words = set((proc / "environ").read_bytes().split(b"\0"))
            is_task = any(word.startswith(b"SLURM_PROCID=") for word in words) and b"SLURM_STEP_ID=0" in words
            if is_task and wanted <= words and "pretrain_gpt" in os.readlink(proc / "exe"):
                os.kill(process, signal.SIGKILL)
                victims.append(process)
    if len(victims) != 1:
        raise RuntimeError(f"not one rank with {variables}: {victims}")


def lose_node(cluster, number, output):
    """The first node of the job, which has rank 0 and the batch script, is gone: nothing runs there any
    more, and the controller is told."""
    name = cluster.run("scontrol", "show", "hostnames", cluster.job(number)["NodeList"]).split()[0]
    daemon = cluster.daemons[f"slurmd_{name}"]
    daemon.kill()
    daemon.wait()
    for process in processes_on(cluster, name):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    leave_foreign_lock(output / "run.lock")
    cluster.run("scontrol", "update", f"nodename={name}", "state=down", "reason=lost")
    wait_for("the job to leave the lost node", lambda: not runs(cluster, number))
    forget_steps(cluster, name)
    cluster.start_node(name)
    wait_for(f"{name} to come back", lambda: "DOWN" not in node_state(cluster, name))


def forget_steps(cluster, name):
    """What the node's steps had in /tmp and in the spool, which is empty when a machine is started anew."""
    shutil.rmtree(cluster.folder / f"tmp_{name}")
    (cluster.folder / f"tmp_{name}").mkdir()
    spool = cluster.folder / f"spool_{name}"
    for socket in spool.glob("stepd.slurm.pmix.*"):
        socket.unlink()
    for folder in spool.glob("pmix.*"):
        shutil.rmtree(folder)


def processes_on(cluster, name):
    """What jobs have on a node: step daemons by their title, tasks by their environment."""
    found = []
    for process in processes_of(cluster.folder):
        with contextlib.suppress(OSError):
            proc = pathlib.Path("/proc") / str(process)
            words = (proc / "environ").read_bytes().split(b"\0")
            title = (proc / "cmdline").read_bytes()
            if f"SLURMD_NODENAME={name}".encode() in words or (
                    title.startswith(b"slurmstepd") and f"slurmd_{name}.log".encode() in opened(proc)):
                found.append(process)
    return found


def opened(proc):
    """The files that a process has open, one a line."""
    names = []
    for entry in (proc / "fd").iterdir():
        with contextlib.suppress(OSError):
            names.append(os.fsencode(os.readlink(entry)))
    return b"\n".join(names)


def leave_foreign_lock(lock):
    """All nodes of the test are one machine; the lock of a lost one names another."""
    with contextlib.suppress(FileNotFoundError):
        lines = lock.read_text().splitlines()
        changed = {"host": "lost.node", "boot_id": "another"}
        lock.write_text("".join(
            f"{name}: {changed.get(name, value)}\n"
            for name, _, value in (line.partition(": ") for line in lines)))


def node_state(cluster, name):
    return cluster.run("sinfo", "--noheader", f"--nodes={name}", "--partition=low", "--format=%T").upper()


def runs(cluster, number):
    return cluster.job(number)["JobState"] == "RUNNING"


KINDS = {function.__name__: function for function in (requeue, preempt, warn, kill_rank, lose_node)}
