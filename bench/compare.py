#!/usr/bin/env python3
"""Runs PyTorch and Tapestry in turn on this machine and prints what came out as Markdown tables.

Needs only the standard library; the PyTorch side runs in another interpreter, Debian's
/usr/bin/python3 with the package python3-torch. Without it only Tapestry's figures are printed.

    cmake --preset release -DTAPESTRY_BUILD_BENCH=ON && cmake --build build/release
    bench/compare.py --ops --steps --rounds 3 > table.md

With --newer ROOT, a root that bench/peer/debian13.sh makes, the tables also have PyTorch 2.6 of
Debian 13: as it is, and steps compiled by torch.compile.
"""
import argparse
import json
import math
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
OPENBLAS_OPENMP = pathlib.Path("/usr/lib") / f"{platform.machine()}-linux-gnu" / "openblas-openmp"
NOT_MEASURED = "-"


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

    def torch_version(self):
        """None, with a message, where PyTorch cannot be run."""
        command = [self.python, "-c", "import torch; print(torch.__version__)"]
        try:
            return run(self.python, command, self.peer_environment).strip()
        except (Failed, OSError) as error:
            log(
                f"no PyTorch ({error}): only Tapestry is measured. For the "
                "comparison: apt-get install python3-torch, or --python INTERPRETER"
            )
            return None

    def newer_version(self, root):
        script = str(HERE / "peer" / "debian13.sh")
        command = [script, str(root), "-c", "import torch; print(torch.__version__)"]
        return run(script, command, self.environment).strip()

    def newer(self, root, program, *arguments):
        command = [str(HERE / "peer" / "debian13.sh"), str(root), program, *arguments]
        return run("newer " + program, command, self.environment)

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
    """Values of each quantity of each case, one per round; read as medians."""

    def __init__(self):
        self.values = {}

    def add(self, case, quantity, value):
        self.values.setdefault(case, {}).setdefault(quantity, []).append(value)

    def median(self, case, quantity):
        found = self.values.get(case, {}).get(quantity)
        return statistics.median(found) if found else None


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


def project_ops(programs, args, samples, cases):
    """One run of ops_bench. With one repetition there is no median row, but a plain one."""
    arguments = [
        "--benchmark_format=json",
        f"--benchmark_filter={re.escape(args.filter) or '.'}",
        f"--benchmark_repetitions={args.repetitions}",
        f"--benchmark_min_time={args.min_time}",
    ]
    for entry in json.loads(programs.project("ops_bench", *arguments))["benchmarks"]:
        name = entry["run_name"].removesuffix("/real_time")
        if name not in cases:
            cases.append(name)
        if entry.get("error_occurred"):
            log(f"{name}: {entry['error_message']}")
        elif entry.get("aggregate_name", "median") == "median":
            samples.add(name, "us", entry["real_time"])
            for counter in ("GFLOP/s", "GB/s"):
                if counter in entry:
                    samples.add(name, counter, entry[counter])


def peer_ops(program, args, samples, cases):
    """One run of torch_ops.py by program(arguments)."""
    arguments = ["--repeats", str(args.repetitions)]
    if args.filter:
        arguments += ["--only", args.filter]
    for line in program(arguments).splitlines():
        seen = json.loads(line)
        name = "/".join((seen["op"], seen["shape"], seen["dtype"]))
        if name not in cases:
            cases.append(name)
        samples.add(name, "us", seen["us"])


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
        )
    head = ["op", "shape", "dtype"]
    for title, _ in peers:
        head += [f"{title} us", "ratio"]
    head += ["Tapestry us", "GFLOP/s", "of peak", "GB/s", "of bandwidth"]
    return table(head, rows) + "".join(summary(*entry) for entry in ratios.items())


STEP_QUANTITIES = ("step_ms", "min_ms", "gflops", "peak_rss_mib", "tokens_per_s", "loss",
                   "page_faults_per_step")  # fmt: skip


def add_step(samples, case, text):
    seen = json.loads(text.strip().splitlines()[-1])
    for quantity in STEP_QUANTITIES:
        samples.add(case, quantity, seen[quantity])


def step_arguments(args, preset, dtype):
    values = {"preset": preset, "dtype": dtype, "batch": args.batch, "seq": args.seq}
    values |= {"steps": args.timed_steps, "warmup": args.warmup, "threads": args.threads}
    return [part for key, value in values.items() for part in ("--" + key, str(value))]


def steps_round(sides, args, failures):
    """Each side: its title, program(arguments), and samples. What failed once is not tried again."""
    for preset in args.presets:
        for dtype in args.dtypes:
            case = (preset, dtype)
            arguments = step_arguments(args, preset, dtype)
            for title, program, samples in sides:
                if (title, case) in failures:
                    continue
                try:
                    add_step(samples, case, program(arguments))
                except Failed as error:
                    log(f"{title} {preset} {dtype}: {error}")
                    failures[title, case] = str(error)


def steps_table(args, ours, peers, limits):
    """`peers`: (title, samples) of each PyTorch."""
    rows = []
    for preset in args.presets:
        for dtype in args.dtypes:
            case = (preset, dtype)
            ms, rss = ours.median(case, "step_ms"), ours.median(case, "peak_rss_mib")
            times, memory = [], []
            for _, theirs in peers:
                peer_ms = theirs.median(case, "step_ms")
                times += [number(peer_ms), ratio(quotient(peer_ms, ms))]
                memory.append(number(theirs.median(case, "peak_rss_mib"), 0))
            flops = ours.median(case, "gflops")
            rows.append(
                [preset, dtype, f"{args.batch} x {args.seq}", *times, number(ms)]
                + [number(ours.median(case, "tokens_per_s"), 0), number(flops)]
                + [percent(quotient(flops, limits.gemm.get(dtype))), *memory, number(rss, 0)]
                + [number(ours.median(case, "page_faults_per_step"), 0)]
            )
    head = ["preset", "dtype", "batch x seq"]
    for title, _ in peers:
        head += [f"{title} ms", "ratio"]
    head += ["Tapestry ms", "tokens/s", "GFLOP/s", "of peak"]
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
    if min(args.rounds, args.timed_steps, args.repetitions, args.threads) < 1:
        parser.error("--rounds, --timed-steps, --repetitions and --threads must be above 0")
    return args


def peers_of(programs, args):
    """The PyTorch sides that can be run here: title and a function (program, arguments) -> text."""
    peers = []
    torch = None if args.no_peer else programs.torch_version()
    if torch:
        peers.append((f"PyTorch {short(torch)}", lambda name, rest: programs.peer(name, *rest)))
    if args.newer and not args.no_peer:
        title = f"PyTorch {short(programs.newer_version(args.newer))}"
        peers.append((title, lambda name, rest: programs.newer(args.newer, name, *rest)))
        if args.steps:
            compiled = lambda name, rest: programs.newer(args.newer, name, *rest, "--compile")
            peers.append((title + " compiled", compiled))
    return peers


def short(version):
    return re.match(r"[0-9]+\.[0-9]+", version).group()


def main():
    args = parse_arguments()
    programs = Programs(args.build_dir, args.python, args.threads)
    peers = peers_of(programs, args)
    limits, failures, op_names = Limits(), {}, []
    ops, steps = Samples(), Samples()
    peer_ops_samples = [(title, Samples()) for title, _ in peers if "compiled" not in title]
    peer_steps_samples = [(title, Samples()) for title, _ in peers]
    machine = ["--quick"] if args.smoke else []
    overrides = [part for o in args.set for part in ("--set", o)]

    def step_program(run_peer):
        return lambda arguments: run_peer("torch_gpt.py", arguments)

    sides = [
        (title, step_program(run_peer), samples)
        for (title, run_peer), (_, samples) in zip(peers, peer_steps_samples)
    ]
    sides.append(("Tapestry", lambda a: programs.project("step_bench", *a, *overrides), steps))

    # The limits are measured in every round too, so that a slow spell of the machine shows.
    for number_of_round in range(args.rounds):
        log(f"round {number_of_round + 1} of {args.rounds}")
        limits.add(programs.project("machine_bench", *machine))
        if args.ops:
            for (title, run_peer), (_, samples) in zip(peers, peer_ops_samples):
                peer_ops(lambda rest: run_peer("torch_ops.py", rest), args, samples, op_names)
            project_ops(programs, args, ops, op_names)
        if args.steps:
            steps_round(sides, args, failures)

    print(f"{processor()}, {limits.about}; ", end="")
    print(f"{', '.join(title for title, _ in peers) or 'PyTorch not measured'}; medians of ", end="")
    print(f"{args.rounds} rounds.\n")
    print(f"GEMM peak: float32 {limits.gemm['float32']:,.0f} GFLOP/s, bfloat16 ", end="")
    print(f"{limits.gemm['bfloat16']:,.0f} GFLOP/s", end="")
    print(f"{'' if limits.native else ' (without 16-bit units)'}; ", end="")
    print(f"arithmetic alone: {limits.arithmetic['float32']:,.0f} and ", end="")
    print(f"{number(limits.arithmetic['bfloat16'] or None, 0)} GFLOP/s; ", end="")
    print(f"memory bandwidth {limits.bandwidth:.1f} GB/s.")
    if args.ops:
        print("\n" + ops_table(op_names, ops, peer_ops_samples, limits))
    if args.steps:
        print("\n" + steps_table(args, steps, peer_steps_samples, limits))
    for (side, (preset, dtype)), reason in failures.items():
        print(f"\n{side}, {preset} in {dtype}: {reason}")
    if args.json:
        everything = {"ops": ops.values, "steps": by_name(steps)}
        everything["peer_ops"] = {title: samples.values for title, samples in peer_ops_samples}
        everything["peer_steps"] = {title: by_name(s) for title, s in peer_steps_samples}
        everything["limits"] = {"gflops": limits.gemm, "gbs": limits.bandwidth}
        args.json.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")
    return 1 if any(side == "Tapestry" for side, _ in failures) and args.smoke else 0


def by_name(samples):
    return {"/".join(case): values for case, values in samples.values.items()}


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as failure:
        sys.exit(f"compare: {failure}")
