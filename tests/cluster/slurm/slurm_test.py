"""Runs of pretrain_gpt on a Slurm cluster of this machine (cluster.py): examples/slurm/*.sbatch as they
stand, interrupted in all the ways that a cluster knows.

  slurm_test.py --program PRETRAIN_GPT --slow-disk LIBRARY --work FOLDER [--mpich PRETRAIN_GPT]
                [--interruptions N]

The last line is the verdict; exit code 0 or 1, and 77 where Slurm or munge is not installed. FOLDER
keeps what squeue and scontrol have said (squeue.txt, jobs.txt), and the logs of the jobs.
"""

import argparse
import pathlib
import shutil
import sys
import tempfile
import time
import traceback

import scenarios
from cluster import Cluster, missing_programs


class Test:
    """The cluster, where things are, and what was seen."""

    def __init__(self, options, cluster, folder):
        self.cluster = cluster
        self.folder = folder  # of the runs; jobs are submitted there
        self.kept = options.work
        self.program = options.program
        self.mpich = options.mpich
        self.slow_disk = options.slow_disk
        self.scripts = pathlib.Path(__file__).resolve().parents[3] / "examples" / "slurm"
        self.interruptions = options.interruptions
        self.start = time.monotonic()
        self.failures = []
        self.left_out = []

    def say(self, text):
        print(f"[{time.monotonic() - self.start:5.1f} s] {text}", flush=True)

    def check(self, holds, text):
        if not holds:
            self.failures.append(text)
            self.say(f"FAILED: {text}")

    def leave_out(self, reason):
        """What cannot run here; the whole then counts as skipped, not as passed."""
        self.left_out.append(reason)
        self.say(f"left out: {reason}")

    def record(self, label, *numbers):
        """Keeps what Slurm says now."""
        stamp = f"=== {time.strftime('%H:%M:%S')} {label}\n"
        with open(self.kept / "squeue.txt", "a") as file:
            file.write(stamp + self.cluster.run("squeue", "--long", "--array") + "\n")
        with open(self.kept / "jobs.txt", "a") as file:
            for number in numbers:
                file.write(stamp + self.cluster.run("scontrol", "show", "job", str(number)))


def run_scenarios(test):
    """One after the other, but for those that wait for the end of a job's time."""
    waiting = [scenarios.begin_warned_in_time(test), scenarios.begin_out_of_time(test)]
    reference = scenarios.undisturbed_run(test)
    for scenario in (scenarios.other_ways_to_start, scenarios.faults_under_srun, scenarios.array_of_jobs,
                     scenarios.cancelled_job, scenarios.drill):
        scenario(test, reference)
    for finish in waiting:
        finish(reference)


def keep_logs(test):
    for pattern in ("*.log", "output*/log/rank_0/info.log", "output*/metrics.jsonl"):
        for path in test.folder.glob(pattern):
            shutil.copy(path, test.kept / str(path.relative_to(test.folder)).replace("/", "_"))
    for path in [*test.cluster.folder.glob("*.log"), *test.cluster.folder.glob("slurm.conf")]:
        shutil.copy(path, test.kept / f"cluster_{path.name}")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, required=True)
    parser.add_argument("--slow-disk", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--mpich", type=pathlib.Path)
    parser.add_argument("--interruptions", type=int, default=len(scenarios.INTERRUPTIONS))
    return parser.parse_args()


def main():
    options = arguments()
    missing = missing_programs()
    if missing:
        print(f"skipped: {', '.join(missing)} not installed (apt-get install slurm-wlm munge)")
        return 77
    shutil.rmtree(options.work, ignore_errors=True)
    options.work.mkdir(parents=True)
    # Not below the build folder: the name of a socket has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="tapestry_slurm_") as scratch:
        runs = pathlib.Path(scratch) / "runs"
        runs.mkdir()
        with Cluster(pathlib.Path(scratch) / "cluster") as cluster:
            test = Test(options, cluster, runs)
            test.say(f"{len(cluster.names)} nodes are idle")
            try:
                run_scenarios(test)
            except (RuntimeError, TimeoutError, OSError, KeyError) as error:
                traceback.print_exc()
                test.failures.append(str(error))
                test.record("failed")
            keep_logs(test)
    if test.failures:
        print("slurm: FAILED: " + "; ".join(test.failures) + f"; see {options.work}")
        return 1
    test.say(f"slurm: passed: {test.interruptions} interruptions of a job and what is above")
    if test.left_out:
        print("skipped, but for what is above: " + "; ".join(test.left_out))
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main())
