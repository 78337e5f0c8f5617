#!/usr/bin/env python3
"""Runs PyTorch and Tapestry in turn on this machine and prints what came out as Markdown tables.

Needs only the standard library; the PyTorch side runs in another interpreter, --python: Debian's
/usr/bin/python3 with the package python3-torch, or one where pip has put PyTorch. Without PyTorch only
Tapestry's figures are printed.

    cmake --preset release -DTAPESTRY_BUILD_BENCH=ON && cmake --build build/release
    bench/compare.py --ops --steps --rounds 3 > table.md

PyTorch runs as it is (eager), with glibc told to keep its memory (kept), and from version 2 on compiled by
torch.compile too (compiled); --peer-modes chooses. With --newer ROOT, a root that bench/peer/debian13.sh
makes, PyTorch 2.6 of Debian 13 stands beside.

All sides of a case run in one state of the machine's processors, "near" or "far" (states.py), or again.
"""
import argparse
import functools
import json
import math
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys

from states import in_one_state

HERE = pathlib.Path(__file__).resolve().parent
OPENBLAS_OPENMP = pathlib.Path("/usr/lib") / f"{platform.machine()}-linux-gnu" / "openblas-openmp"
NOT_MEASURED = "-"
MODES = {
    "eager": [],
    "kept": ["--keep-memory"],
    "compiled": ["--keep-memory", "--compile"],
}


def log(*parts):
    print("compare:", *parts, file=sys.stderr, flush=True)


class Failed(Exception):
    """A program ended with an error; the text says which and why."""


def run(name, command, environment):
    log(name, *command[1:])
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = (done.stderr.strip() or f"signal or status {done.returncode}").splitlines()
        raise Failed(f"{name}: {reason[-1].strip()}")
    return done.stdout


class Programs:
    """The commands of both sides, and the environment that gives them the same threads."""

    def __init__(self, build_dir, python, threads):
        self.build_dir = build_dir
        self.python = python
        self.environment = dict(os.environ, OMP_NUM_THREADS=str(threads))
        # PyTorch takes whichever OpenBLAS the alternatives name; the pthread flavour beside
        # PyTorch's own OpenMP team would slow it down several times.
        self.peer_environment = dict(self.environment)
        if OPENBLAS_OPENMP.is_dir():
            paths = [str(OPENBLAS_OPENMP), os.environ.get("LD_LIBRARY_PATH", "")]
            self.peer_environment["LD_LIBRARY_PATH"] = ":".join(filter(None, paths))
        for program in ("machine_bench", "ops_bench", "step_bench"):
            if not (build_dir / program).is_file():
                sys.exit(
                    f"compare: {build_dir / program} is missing; build it with\n"
                    "  cmake --preset release -DTAPESTRY_BUILD_BENCH=ON && "
                    f"cmake --build build/release --target {program}\n"
                    "or name its folder with --build-dir"
                )

    def about_torch(self):
        """What torch_about.py says of it. None, with a message, where PyTorch cannot be run."""
        try:
            return json.loads(self.peer("torch_about.py"))
        except (Failed, OSError) as error:
            log(
                f"no PyTorch ({error}): only Tapestry is measured. For the "
                "comparison: apt-get install python3-torch, or --python INTERPRETER"
            )
            return None

    def newer(self, root, program, *arguments):
        command = [str(HERE / "peer" / "debian13.sh"), str(root), program, *arguments]
        return run("newer " + program, command, self.environment)

    def state(self):
        """near, far, both or none: where the threads' processors are at this moment."""
        command = [str(self.build_dir / "machine_bench"), "--round-trip"]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)["state"]

    def project(self, program, *arguments):
        return run(program, [str(self.build_dir / program), *arguments], self.environment)

    def peer(self, program, *arguments):
        command = [self.python, str(HERE / "peer" / program), *arguments]
        return run(program, command, self.peer_environment)


class Limits:
    """The best of what machine_bench saw over the whole comparison."""

    def __init__(self):
        self.gemm = {}
        self.arithmetic = {}
        self.bandwidth = 0.0
        self.native = False

    def add(self, text):
        seen = json.loads(text)
        for dtype in ("float32", "bfloat16"):
            peak = seen["gemm"][dtype]["peak_gflops"]
            self.gemm[dtype] = max(peak, self.gemm.get(dtype, 0.0))
            peak = seen["arithmetic"][dtype]["peak_gflops"]
            self.arithmetic[dtype] = max(peak, self.arithmetic.get(dtype, 0.0))
        self.native = seen["gemm"]["bfloat16"]["native"]
        self.bandwidth = max(self.bandwidth, seen["memory"]["peak_gbs"])
        self.about = f"{seen['threads']} threads, CPU level {seen['cpu_level']}, {seen['blas']}"


class Samples:
    """Values of each quantity of each case, one per round; read as medians, or the least."""

    def __init__(self):
        self.values = {}

    def add(self, case, quantity, value):
        self.values.setdefault(case, {}).setdefault(quantity, []).append(value)

    def median(self, case, quantity):
        found = self.values.get(case, {}).get(quantity)
        return statistics.median(found) if found else None

    def least(self, case, quantity):
        found = self.values.get(case, {}).get(quantity)
        return min(found) if found else None


def number(value, digits=1):
    return NOT_MEASURED if value is None else f"{value:,.{digits}f}"


def quotient(a, b):
    return None if a is None or not b else a / b


def ratio(value):
    return NOT_MEASURED if value is None else f"{value:.2f}x"


def percent(value):
    return NOT_MEASURED if value is None else f"{100 * value:.0f} %"


def geometric_mean(values):
    return math.exp(statistics.fmean(math.log(v) for v in values))


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * 3 + "---:|" * (len(head) - 3)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def project_ops(programs, args):
    """One run of ops_bench: (name, quantity, value) and the states it saw. With one repetition there is no
    median row, but a plain one."""
    arguments = [
        "--benchmark_format=json",
        f"--benchmark_filter={re.escape(args.filter) or '.'}",
        f"--benchmark_repetitions={args.repetitions}",
        f"--benchmark_min_time={args.min_time}",
    ]
    found = []
    for entry in json.loads(programs.project("ops_bench", *arguments))["benchmarks"]:
        name = entry["run_name"].removesuffix("/real_time")
        if entry.get("error_occurred"):
            log(f"{name}: {entry['error_message']}")
        elif entry.get("aggregate_name", "median") == "median":
            found.append((name, "us", entry["real_time"]))
            counters = ("GFLOP/s", "GB/s", "round_trip_ns")
            found += [(name, counter, entry[counter]) for counter in counters if counter in entry]
    return found, []


def peer_ops(run_peer, args):
    """One run of torch_ops.py by run_peer(program, arguments)."""
    arguments = ["--repeats", str(args.repetitions)]
    if args.filter:
        arguments += ["--only", args.filter]
    found = []
    for line in run_peer("torch_ops.py", arguments).splitlines():
        seen = json.loads(line)
        found.append(("/".join((seen["op"], seen["shape"], seen["dtype"])), "us", seen["us"]))
    return found, []


def ops_round(programs, sides, args, cases):
    """Each side: a function that returns values and states, and samples. Returns the state of all."""
    runs = [run_side for run_side, _ in sides]
    results, state = in_one_state(runs, programs.state, args.state_repeats, log)
    for (_, samples), found in zip(sides, results):
        for name, quantity, value in found:
            if name not in cases:
                cases.append(name)
            samples.add(name, quantity, value)
    return state


def summary(name, ratios):
    if not ratios:
        return ""
    text = f"\n\n{name}: geometric mean of {len(ratios)} ratios {geometric_mean(ratios):.2f}x, "
    return text + f"lowest {min(ratios):.2f}x."


def ops_table(cases, ours, peers, limits):
    """`peers`: (title, samples) of each PyTorch."""
    rows, ratios = [], {title: [] for title, _ in peers}
    for name in cases:
        us = ours.median(name, "us")
        times = []
        for title, theirs in peers:
            peer_us = theirs.median(name, "us")
            speedup = quotient(peer_us, us)
            if speedup is not None:
                ratios[title].append(speedup)
            times += [number(peer_us), ratio(speedup)]
        flops, bandwidth = ours.median(name, "GFLOP/s"), ours.median(name, "GB/s")
        op, shape, dtype = name.split("/")
        rows.append(
            [op, shape, dtype, *times, number(us), number(flops)]
            + [percent(quotient(flops, limits.gemm.get(dtype))), number(bandwidth)]
            + [percent(quotient(bandwidth, limits.bandwidth))]
            + [number(ours.median(name, "round_trip_ns"), 0)]
        )
    head = ["op", "shape", "dtype"]
    for title, _ in peers:
        head += [f"{title} us", "ratio"]
    head += ["Tapestry us", "GFLOP/s", "of peak", "GB/s", "of bandwidth", "round trip ns"]
    return table(head, rows) + "".join(summary(*entry) for entry in ratios.items())


STEP_QUANTITIES = ("step_ms", "min_ms", "gflops", "peak_rss_mib", "loss", "page_faults_per_step")


def step_arguments(args, preset, dtype):
    values = {"preset": preset, "dtype": dtype, "batch": args.batch, "seq": args.seq}
    values |= {"steps": args.timed_steps, "warmup": args.warmup, "threads": args.threads}
    return [part for key, value in values.items() for part in ("--" + key, str(value))]


def run_steps(title, program, arguments, case, failures):
    """What the program printed, or None, and the states that it saw. What failed once is not tried again."""
    if (title, case) in failures:
        return None, []
    try:
        seen = json.loads(program(arguments).strip().splitlines()[-1])
    except Failed as error:
        log(f"{title} {' '.join(case)}: {error}")
        failures[title, case] = str(error)
        return None, []
    return seen, [seen[key] for key in ("state", "state_after") if key in seen]


def steps_round(programs, sides, args, failures):
    """Each side: its title, program(arguments), and samples by (preset, dtype, state)."""
    for case in ((preset, dtype) for preset in args.presets for dtype in args.dtypes):
        rest = (step_arguments(args, *case), case, failures)
        runs = [functools.partial(run_steps, title, program, *rest) for title, program, _ in sides]
        results, state = in_one_state(runs, programs.state, args.state_repeats, log)
        for (_, _, samples), seen in zip(sides, results):
            for quantity in STEP_QUANTITIES if seen else ():
                samples.add((*case, state), quantity, seen[quantity])


def step_cases(args, ours):
    """What was measured, in the order of the arguments; each in as many rows as it had states."""
    order = [(preset, dtype) for preset in args.presets for dtype in args.dtypes]
    return sorted(ours.values, key=lambda case: (order.index(case[:2]), case[2]))


def steps_table(args, ours, peers, limits):
    """`peers`: (title, samples) of each PyTorch. Times are the least of all timed steps in that state."""
    rows = []
    for case in step_cases(args, ours):
        preset, dtype, state = case
        ms = ours.least(case, "min_ms")
        times = [theirs.least(case, "min_ms") for _, theirs in peers]
        best = min((time for time in times if time), default=None)
        memory = [number(theirs.median(case, "peak_rss_mib"), 0) for _, theirs in peers]
        # The programs divide by their median step.
        flops = ours.median(case, "gflops") * ours.median(case, "step_ms") / ms
        rows.append(
            [preset, dtype, f"{args.batch} x {args.seq}", *map(number, times), number(ms)]
            + ([ratio(quotient(best, ms))] if peers else [])
            + [number(1e3 * args.batch * args.seq / ms, 0), number(flops)]
            + [percent(quotient(flops, limits.arithmetic.get(dtype)))]
            + [percent(quotient(flops, limits.gemm.get(dtype))), state]
            + [*memory, number(ours.median(case, "peak_rss_mib"), 0)]
            + [number(ours.median(case, "page_faults_per_step"), 0)]
        )
    head = ["preset", "dtype", "batch x seq"] + [f"{title} ms" for title, _ in peers]
    head += ["Tapestry ms"] + (["ratio to the best"] if peers else [])
    head += ["tokens/s", "GFLOP/s", "share of arithmetic", "of the best product", "state"]
    head += [f"{title} MiB" for title, _ in peers] + ["Tapestry MiB", "page faults"]
    return table(head, rows)


def processor():
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--ops", action="store_true", help="compare op by op (both, if neither is named)")
    add("--steps", action="store_true", help="compare whole training steps")
    add("--rounds", type=int, default=3, help="times that both sides run, in turn")
    add("--filter", default="", help="only ops whose op/shape/dtype contains this")
    add("--presets", default="tiny,gpt2_124m,llama_110m", help="models, separated by commas")
    add("--dtypes", default="float32,bfloat16", help="of the steps, separated by commas")
    add("--batch", type=int, default=4)
    add("--seq", type=int, default=256)
    add("--timed-steps", type=int, default=5, help="steps of a run that are timed")
    add("--warmup", type=int, default=2, help="steps of a run before them")
    add("--repetitions", type=int, default=7, help="measurements of an op in a run")
    add("--min-time", type=float, default=0.05, help="seconds of one of Tapestry's measurements")
    threads = int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0)))
    add("--threads", type=int, default=threads, help="of both sides")
    add("--set", action="append", default=[], help="section.key=value for step_bench")
    add("--build-dir", type=pathlib.Path, default=HERE.parent / "build" / "release" / "bench")
    add("--python", default="/usr/bin/python3", help="interpreter that has PyTorch")
    add("--newer", metavar="ROOT", type=pathlib.Path,
        help="also PyTorch 2.6, in the root that bench/peer/debian13.sh makes there (as root)")  # fmt: skip
    add("--peer-modes", default=",".join(MODES), help="how PyTorch runs, separated by commas")
    add("--state-repeats", type=int, default=2,
        help="times that a case runs again whose runs do not lie in one state of the machine")  # fmt: skip
    add("--no-peer", action="store_true", help="measure Tapestry only")
    add("--json", type=pathlib.Path, help="also write every single value to this file")
    add("--smoke", action="store_true", help="tiny run of everything, to see that it works")
    args = parser.parse_args()
    if not args.ops and not args.steps:
        args.ops = args.steps = True
    if args.smoke:
        args.no_peer, args.newer = True, None
        args.rounds, args.presets, args.dtypes = 1, "tiny", "float32"
        args.batch, args.seq, args.timed_steps, args.warmup = 1, 16, 2, 1
        args.repetitions, args.min_time, args.filter = 1, 0.001, "1000_adds"
    args.presets, args.dtypes = args.presets.split(","), args.dtypes.split(",")
    args.peer_modes = args.peer_modes.split(",")
    if not set(args.peer_modes) <= set(MODES):
        parser.error(f"--peer-modes: choose among {', '.join(MODES)}")
    if min(args.rounds, args.timed_steps, args.repetitions, args.threads) < 1:
        parser.error("--rounds, --timed-steps, --repetitions and --threads must be above 0")
    return args


def peers_of(programs, args):
    """The PyTorch sides that can be run here: title, mode and a function (program,
    arguments) -> text; and what the versions are."""
    found = []
    if not args.no_peer:
        found.append((programs.about_torch(), programs.peer))
    if args.newer and not args.no_peer:
        run_newer = lambda program, *rest: programs.newer(args.newer, program, *rest)
        found.append((json.loads(run_newer("torch_about.py")), run_newer))
    peers, texts = [], []
    for about, run_peer in found:
        if about is None:
            continue
        version = re.match(r"[0-9]+\.[0-9]+", about["torch"]).group()
        texts.append(f"PyTorch {about['torch']} ({about['blas']}, oneDNN {about['onednn']})")
        for mode in args.peer_modes:
            if mode == "compiled" and (version.startswith("1.") or not args.steps):
                continue
            in_mode = lambda name, rest, run=run_peer, mode=mode: run(name, *rest, *MODES[mode])
            peers.append((f"PyTorch {version} {mode}", mode, in_mode))
    return peers, texts


def main():
    args = parse_arguments()
    programs = Programs(args.build_dir, args.python, args.threads)
    peers, peer_texts = peers_of(programs, args)
    limits, failures, op_names, op_states = Limits(), {}, [], []
    ops, steps = Samples(), Samples()
    peer_ops_samples = [(title, Samples()) for title, mode, _ in peers if mode != "compiled"]
    peer_steps_samples = [(title, Samples()) for title, _, _ in peers]
    machine = ["--quick"] if args.smoke else []
    overrides = [part for o in args.set for part in ("--set", o)]

    op_peers = [run_peer for _, mode, run_peer in peers if mode != "compiled"]
    ops_sides = [
        (functools.partial(peer_ops, run_peer, args), samples)
        for run_peer, (_, samples) in zip(op_peers, peer_ops_samples)
    ]
    ops_sides.append((functools.partial(project_ops, programs, args), ops))
    step_sides = [
        (title, functools.partial(run_peer, "torch_gpt.py"), samples)
        for (title, _, run_peer), (_, samples) in zip(peers, peer_steps_samples)
    ]
    step_sides.append(("Tapestry", lambda a: programs.project("step_bench", *a, *overrides), steps))

    # The limits are measured in every round too, so that a slow spell of the machine shows.
    for number_of_round in range(args.rounds):
        log(f"round {number_of_round + 1} of {args.rounds}")
        limits.add(programs.project("machine_bench", *machine))
        if args.ops:
            op_states.append(ops_round(programs, ops_sides, args, op_names))
        if args.steps:
            steps_round(programs, step_sides, args, failures)

    print(f"{processor()}, {limits.about}; ", end="")
    print(f"{', '.join(peer_texts) or 'PyTorch not measured'}; ", end="")
    print(f"{args.rounds} rounds.\n")
    print(f"GEMM peak: float32 {limits.gemm['float32']:,.0f} GFLOP/s, bfloat16 ", end="")
    print(f"{limits.gemm['bfloat16']:,.0f} GFLOP/s", end="")
    print(f"{'' if limits.native else ' (without 16-bit units)'}; ", end="")
    print(f"arithmetic alone: {limits.arithmetic['float32']:,.0f} and ", end="")
    print(f"{number(limits.arithmetic['bfloat16'] or None, 0)} GFLOP/s; ", end="")
    print(f"memory bandwidth {limits.bandwidth:.1f} GB/s.")
    if args.ops:
        print(f"\nState of the machine in each round of the ops: {', '.join(op_states)}.")
        print("\n" + ops_table(op_names, ops, peer_ops_samples, limits))
    if args.steps:
        print("\n" + steps_table(args, steps, peer_steps_samples, limits))
    for (side, (preset, dtype)), reason in failures.items():
        print(f"\n{side}, {preset} in {dtype}: {reason}")
    if args.json:
        everything = {"ops": ops.values, "steps": by_name(steps), "op_states": op_states}
        everything["peer_ops"] = {title: samples.values for title, samples in peer_ops_samples}
        everything["peer_steps"] = {title: by_name(s) for title, s in peer_steps_samples}
        everything["limits"] = {"gflops": limits.gemm, "gbs": limits.bandwidth}
        everything["limits"]["arithmetic"] = limits.arithmetic
        everything["about"] = peer_texts
        args.json.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")
    return 1 if any(side == "Tapestry" for side, _ in failures) and args.smoke else 0


def by_name(samples):
    return {"/".join(case): values for case, values in samples.values.items()}


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as failure:
        sys.exit(f"compare: {failure}")
