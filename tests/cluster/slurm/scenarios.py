"""What slurm_test.py does on its cluster, one function for each thing to be seen."""

import re
import subprocess

import interruptions
import small_run
from cluster import wait_for

# What happens to the job of the drill, in which partition it runs then, and on how many nodes it goes on.
INTERRUPTIONS = [
    ("requeue", "low", 4),
    ("preempt", "low", 1),
    ("kill_rank", "low", 1),
    ("warn", "low", 2),
    ("preempt", "spot", 4),
    ("lose_node", "low", 2),
]


def steps_of(test):
    """Steps of a run, enough for all interruptions."""
    return 12 + 4 * test.interruptions


def slow(test, milliseconds):
    """An environment in which each step, which saves, takes so much longer without using the processor."""
    return {**environment(test), "LD_PRELOAD": str(test.slow_disk), "SLOW_DISK": "0:manifest.json",
            "SLOW_DISK_MS": str(milliseconds)}


def environment(test):
    return {**test.cluster.environment, "PRETRAIN_GPT": str(test.program)}


def submit(test, *words, environment):
    result = subprocess.run(["sbatch", "--parsable", *map(str, words)], cwd=test.folder, env=environment,
                            text=True, capture_output=True, check=True)
    return int(re.search(r"\d+", result.stdout)[0])


def configuration(test, name, steps=None, **settings):
    path = test.folder / f"{name}.yaml"
    return small_run.write_configuration(path, f"./output_{name}", steps=steps or steps_of(test), **settings)


def has_ended(test, number):
    state = test.cluster.job(number)["JobState"]
    return state if state not in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING") else None


def wait_for_end(test, number, seconds=180):
    return wait_for(f"job {number} to end", lambda: has_ended(test, number), seconds, pause=0.3)


def log_of(test, number, name="pretrain"):
    path = test.folder / f"{name}-{number}.log"
    return path.read_text(errors="replace") if path.exists() else ""


def check_run(test, name, reference, bits=True):
    found = small_run.lines_of(test.folder / f"output_{name}")
    wrong = small_run.differences(reference, found, bits)
    test.check(not wrong, f"{name}: {wrong}")


def srun(test, *words, program=None):
    """srun of the program on two nodes, a rank on each."""
    return test.cluster.try_run("srun", "--nodes=2", "--ntasks=2", "--wait=5", *words[:1],
                                str(program or test.program), *map(str, words[1:]), cwd=test.folder)


def undisturbed_run(test):
    """What the others are compared with: two ranks on two nodes, by srun --mpi=pmix."""
    small_run.write_text(test.folder / "text.txt")
    result = srun(test, "--mpi=pmix", "--config_path", configuration(test, "undisturbed"),
                  "--set", "training_config.save_interval=null")
    test.check(result.returncode == 0, f"srun --mpi=pmix: {result.returncode}: {end_of(result)}")
    lines = small_run.lines_of(test.folder / "output_undisturbed")
    test.check([line["step"] for line in lines] == list(range(1, steps_of(test) + 1)),
               "the undisturbed run has not all steps")
    # One core for each rank is what Slurm has bound it to, and all threads that it takes.
    for text in ("dp 2 |", "1 thread a rank", "rank 1: host ", ", core 0 of NUMA node "):
        test.check(text in result.stdout, f"srun --mpi=pmix: '{text}' is not in what it says")
    # All nodes of the test are this machine, so both ranks have its first core.
    test.check("more threads than cores on host" in result.stdout,
               "srun --mpi=pmix: no warning of threads that share a core")
    test.say("srun --mpi=pmix: two ranks on two nodes")
    return lines


def other_ways_to_start(test, reference):
    """srun --mpi=pmi2 for MPICH; what does not connect ranks is refused."""
    if test.mpich and test.mpich.exists():
        result = srun(test, "--mpi=pmi2", "--config_path", configuration(test, "mpich"),
                      "--set", "training_config.save_interval=null", program=test.mpich)
        test.check(result.returncode == 0, f"MPICH: {result.returncode}: {end_of(result)}")
        check_run(test, "mpich", reference)
        test.say("srun --mpi=pmi2: MPICH, the same bits")
    else:
        test.leave_out("there is no pretrain_gpt that is built with MPICH")
    result = srun(test, "--mpi=none", "--config_path", test.folder / "undisturbed.yaml")
    test.check(result.returncode == 1 and "--mpi=pmi" in result.stderr,
               f"--mpi=none: {result.returncode}: {end_of(result)}")


def end_of(result):
    return (result.stdout + result.stderr)[-1000:]


def faults_under_srun(test, _reference):
    """Exit codes arrive, and nobody waits for a rank that is gone."""
    path = configuration(test, "wrong")
    result = srun(test, "--mpi=pmix", "--config_path", path, "--set", "model_config.num_layers=none")
    test.check(result.returncode == 2 and result.stderr.count("model_config.num_layers: ") == 1,
               f"wrong configuration: {result.returncode}: {end_of(result)}")
    step = subprocess.Popen(
        ["srun", "--nodes=2", "--ntasks=2", "--mpi=pmix", "--wait=5", str(test.program),
         "--config_path", str(configuration(test, "killed"))],
        cwd=test.folder, env=slow(test, 300), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    output = test.folder / "output_killed"
    wait_for("its first steps", lambda: small_run.last_step(output) >= 2)
    interruptions.end_ranks(test.cluster, {"SLURM_PROCID": "1"})
    errors = step.communicate(timeout=60)[1]
    test.check(step.returncode == 137, f"a killed rank: exit code {step.returncode}: {errors[-1000:]}")
    test.say("srun: exit code 2 of a wrong configuration, 137 where a rank was killed")


def array_of_jobs(test, _reference):
    """sweep.sbatch with its table, as both stand; one task is put back in the middle of its run."""
    steps = 24
    number = submit(test, test.scripts / "sweep.sbatch", configuration(test, "sweep", steps),
                    test.scripts / "sweep.txt", environment=slow(test, 100))
    second = test.folder / "sweep" / "2"
    wait_for("the second task's first steps", lambda: small_run.last_step(second) >= 3)
    test.record("array", number)
    interruptions.requeue(test.cluster, f"{number}_2", second)
    start_again(test, f"{number}_2", "requeue", "low", 1)
    for index in range(1, 5):
        state = wait_for_end(test, f"{number}_{index}")
        test.check(state == "COMPLETED", f"task {index} of the array: {state}")
    rates = []
    for index in range(1, 5):
        lines = small_run.lines_of(test.folder / "sweep" / str(index))
        test.check([line["step"] for line in lines] == list(range(1, steps + 1)),
                   f"task {index} of the array has not all steps")
        rates.append(lines[0]["lr"][0])
    test.check(rates == [3e-4, 1e-3, 3e-3, 1e-3], f"learning rates of the table: {rates}")
    test.check("start 2: " in (test.folder / f"sweep-{number}_2.log").read_text(), "the second task was not put back")
    outside = submit(test, "--array=9", test.scripts / "sweep.sbatch", test.folder / "sweep.yaml",
                     test.scripts / "sweep.txt", environment=environment(test))
    wait_for_end(test, f"{outside}_9")
    test.check(test.cluster.job(f"{outside}_9")["ExitCode"] == "2:0" and
               "which has 4" in (test.folder / f"sweep-{outside}_9.log").read_text(), "a task without a line is refused")
    test.say("sweep.sbatch: four tasks of an array, one of them put back")


def cancelled_job(test, _reference):
    """scancel: the run saves, and the job is not put back."""
    number = submit(test, test.scripts / "pretrain.sbatch", configuration(test, "cancelled"),
                    environment=slow(test, 300))
    output = test.folder / "output_cancelled"
    wait_for("its first steps", lambda: small_run.last_step(output) >= 2)
    test.cluster.run("scancel", str(number))
    state = wait_for_end(test, number)
    log = log_of(test, number)
    test.check(state == "CANCELLED" and "stopped on request" in log and "goes back" not in log,
               f"cancelled: {state}: {log[-2000:]}")
    saved = small_run.last_step(output)
    test.check((output / "checkpoint" / f"step_{saved:08}").is_dir(), f"cancelled: step {saved} was not saved")
    test.say("scancel: saved, and not put back")


def start_again(test, number, what, partition, nodes):
    """Waits until the job is back in the queue, and lets it start soon, on that many nodes: not at once, as
    a node refuses a start whose credential is not newer than the end of the one before."""
    job = wait_for(f"the job to be back in the queue after {what}",
                   lambda: (lambda j: j if j["JobState"] == "PENDING" else None)(test.cluster.job(number)))
    test.record(f"after {what} (goes on: {partition}, {nodes} nodes)", number)
    test.cluster.run("scontrol", "update", f"jobid={number}", f"NumNodes={nodes}-{nodes}",
                     f"NumTasks={nodes}", f"NumCPUs={nodes}", f"Partition={partition}", "StartTime=now+3seconds")
    return job


def is_at_work(test, number):
    ended = has_ended(test, number)
    if ended:
        raise RuntimeError(f"job {number} is {ended} before all interruptions: {log_of(test, number)[-2000:]}")
    return interruptions.runs(test.cluster, number)


def drill(test, reference):
    """pretrain.sbatch as it stands, interrupted again and again."""
    number = submit(test, "--nodes=2", test.scripts / "pretrain.sbatch", configuration(test, "drill"),
                    environment=slow(test, 400))
    output = test.folder / "output_drill"
    changes, before, nodes = 0, 0, 2
    for index in range(test.interruptions):
        what, _, following = INTERRUPTIONS[index % len(INTERRUPTIONS)]
        wait_for(f"progress before interruption {index + 1}",
                 lambda: is_at_work(test, number) and small_run.last_step(output) >= before + 2, seconds=180)
        interruptions.KINDS[what](test.cluster, number, output)
        wait_for("the job to stop", lambda: not interruptions.runs(test.cluster, number))
        partition = INTERRUPTIONS[(index + 1) % len(INTERRUPTIONS)][1]
        start_again(test, number, what, partition, following)
        changes += following != nodes
        before = small_run.last_step(output)
        test.say(f"interruption {index + 1}, {what} on {nodes} nodes, after step {before}; goes on on {following}")
        nodes = following
    state = wait_for_end(test, number)
    job = test.cluster.job(number)
    test.record("the drill has ended", number)
    log = log_of(test, number)
    test.check(state == "COMPLETED", f"the drill's job ends as {state}: {log[-2000:]}")
    # More where MPI has failed in its start: the script has put the job back, as for any rank that is lost.
    more = int(job["Restarts"]) - test.interruptions
    test.check(0 <= more <= test.interruptions // 4, f"the drill's job has {job['Restarts']} restarts: {log[-2000:]}")
    if more:
        test.say(f"{more} starts more than interruptions, after: " + "; ".join(
            re.findall(r"pretrain_gpt\.sh: (start \d+: .*may start again)", log)))
    for ranks in (1, 2, 4):
        test.check(f"{ranks} ranks x 1 threads" in log, f"the drill never had {ranks} ranks")
    check_run(test, "drill", reference)
    test.say(f"pretrain.sbatch: {test.interruptions} interruptions, {changes} onto another number of nodes: "
             "losses and hashes of all steps are those of the undisturbed run")


def begin_warned_in_time(test):
    """A job whose time is shorter than its run: it saves when Slurm says so, and goes back by itself."""
    small_run.write_text(test.folder / "text.txt")
    # Slurm looks every half a minute for jobs with no more than a minute and a half left. With less from
    # the start on it may warn a job whose script has not begun yet, and then never again.
    number = submit(test, "--partition=apart", "--time=2", test.scripts / "pretrain.sbatch",
                    configuration(test, "warned", batch=4, exact=False), environment=slow(test, 75000 // steps_of(test)))

    def finish(reference):
        state = wait_for_end(test, number)
        test.record("warned before the end of the time", number)
        log = log_of(test, number)
        test.check(state == "COMPLETED" and "saved before the end of the time" in log and
                   int(test.cluster.job(number)["Restarts"]) >= 1, f"warned in time: {state}: {log[-2000:]}")
        check_run(test, "warned", reference, bits=False)  # not in exact mode, and in another layout
        test.say(f"USR1 before the end of the time: {test.cluster.job(number)['Restarts']} restarts")

    return finish


def begin_out_of_time(test):
    """A job that nobody warns: SIGTERM at the end of its time, and it goes on when it is submitted again."""
    words = ("--partition=apart", test.scripts / "pretrain.sbatch",
             configuration(test, "out_of_time", batch=4, exact=False))
    number = submit(test, "--time=1", "--signal=B:CONT@1", *words,
                    environment=slow(test, 108000 // steps_of(test)))

    def finish(reference):
        state = wait_for_end(test, number)
        test.record("out of time", number)
        log = log_of(test, number)
        test.check(state == "TIMEOUT" and "stopped on request" in log, f"out of time: {state}: {log[-2000:]}")
        reached = small_run.last_step(test.folder / "output_out_of_time")
        again = submit(test, *words, environment=environment(test))
        state = wait_for_end(test, again)
        test.check(state == "COMPLETED" and f"step_{reached:08}" in log_of(test, again),
                   f"submitted again: {state}: {log_of(test, again)[-2000:]}")
        check_run(test, "out_of_time", reference, bits=False)
        # Both have one rank, and were interrupted at other steps.
        check_run(test, "out_of_time", small_run.lines_of(test.folder / "output_warned"))
        test.say(f"end of the time at step {reached}, submitted again; the bits of the job that was warned")

    return finish
