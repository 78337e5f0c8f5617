"""pretrain.sbatch hears the warning before the end of a job's time however close SIGCONT comes to it:
Slurm sends both at once. What it calls (srun, scontrol, pretrain_gpt) are scripts here; no cluster.

Many jobs at once, as what is lost is lost in some of them.
"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

JOBS = 16
STAND_INS = {
    # A run that saves when it is asked to; without that it ends by itself, as one that was not warned.
    "srun": """for _ in {1..100}; do sleep 0.1; done & wait_for=$!
trap 'mkdir -p out/checkpoint/step_00000001; kill "$wait_for"; exit 0' USR1
touch started
wait "$wait_for"
""",
    "scontrol": """[[ "$1" != requeue ]] || touch requeued
echo "JobState=RUNNING PreemptTime=None"
""",
    "pretrain_gpt": """[[ "$*" != *--print_config* ]] || echo "  output_dir: out"
""",
}


def begin(script, programs, folder):
    """A job of one rank whose script has started its step."""
    folder.mkdir()
    (folder / "run.yaml").touch()
    environment = dict(os.environ, PATH=f"{programs}:{os.environ['PATH']}", SLURM_JOB_ID="1",
                       SLURM_JOB_NUM_NODES="1", SLURM_CPUS_ON_NODE="1", SLURM_JOB_NODELIST="n1")
    with open(folder / "log", "w") as log:
        return subprocess.Popen(["bash", str(script), "run.yaml"], cwd=folder, env=environment, stdout=log,
                                stderr=subprocess.STDOUT, start_new_session=True)


def check(folder):
    """What is wrong with a job that was warned; empty if nothing is."""
    log = (folder / "log").read_text()
    if (folder / "requeued").exists() and "saved before the end of the time" in log:
        return ""
    return f"was warned and did not save and go back:\n{log}"


def main():
    script = pathlib.Path(__file__).resolve().parents[3] / "examples" / "slurm" / "pretrain.sbatch"
    with tempfile.TemporaryDirectory(prefix="tapestry_warning_") as scratch:
        scratch = pathlib.Path(scratch)
        programs = scratch / "programs"
        programs.mkdir()
        for name, text in STAND_INS.items():
            (programs / name).write_text("#!/usr/bin/env bash\n" + text)
            (programs / name).chmod(0o755)
        folders = [scratch / str(index) for index in range(JOBS)]
        jobs = [begin(script, programs, folder) for folder in folders]
        end = time.monotonic() + 60
        while not all((folder / "started").exists() for folder in folders):
            if time.monotonic() > end:
                print("warning: FAILED: not all jobs have started: " + (folders[0] / "log").read_text())
                return 1
            time.sleep(0.05)
        for job in jobs:
            os.kill(job.pid, signal.SIGCONT)
            os.kill(job.pid, signal.SIGUSR1)
        for job in jobs:
            job.wait()
        wrong = [text for text in map(check, folders) if text]
    if wrong:
        print(f"warning: FAILED: {len(wrong)} of {JOBS} jobs: {wrong[0]}")
        return 1
    print(f"warning: passed: {JOBS} jobs saved and went back")
    return 0


if __name__ == "__main__":
    sys.exit(main())
