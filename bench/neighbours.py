#!/usr/bin/env python3
"""Shows what runs cost each other that share a machine; bench/README.md.

The same training steps are timed alone and while others of their kind run beside them, each with as many
threads as the machine has cores. Fair shares would be as many times the time alone as there are runs;
threads that wait for each other while they keep the cores busy take far more. Needs only the standard
library.

    cmake --preset release -DTAPESTRY_BUILD_BENCH=ON && cmake --build build/release --target step_bench
    bench/neighbours.py > build/neighbours.md

With --peer the same in PyTorch, by /usr/bin/python3.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seq", type=int, default=64)
    parser.add_argument("--steps", type=int, default=100, help="steps of a run that are timed")
    parser.add_argument("--runs", type=int, default=2, help="at the same time")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of each run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--build-dir", type=pathlib.Path, default=ROOT / "build/release/bench")
    parser.add_argument("--peer", action="store_true", help="also PyTorch")
    parser.add_argument("--python", default="/usr/bin/python3", help="interpreter that has PyTorch")
    return parser.parse_args()


def command(arguments, peer):
    program = (
        [arguments.python, str(ROOT / "bench/peer/torch_gpt.py")]
        if peer
        else [str(arguments.build_dir / "step_bench")]
    )
    return program + [
        "--preset", arguments.preset, "--dtype", arguments.dtype, "--batch", str(arguments.batch),
        "--seq", str(arguments.seq), "--steps", str(arguments.steps), "--warmup", "5",
        "--threads", str(arguments.threads),
    ]  # fmt: skip


def step_times(arguments, peer, runs):
    """Median step of each of `runs` runs that start together."""
    started = [
        subprocess.Popen(command(arguments, peer), stdout=subprocess.PIPE, text=True) for _ in range(runs)
    ]
    times = []
    for process in started:
        out, _ = process.communicate()
        if process.returncode != 0:
            sys.exit(f"neighbours: {' '.join(process.args)} ended with {process.returncode}")
        times.append(json.loads(out.strip().splitlines()[-1])["step_ms"])
    return times


def main():
    arguments = parse_arguments()
    print(
        f"{arguments.preset} {arguments.dtype}, {arguments.batch} x {arguments.seq}, {arguments.threads} threads a "
        f"run, {os.cpu_count()} cores; medians of {arguments.rounds} rounds.\n"
    )
    print(f"| program | alone ms | {arguments.runs} at once ms | ratio |\n|---|---:|---:|---:|")
    for peer in [False, True] if arguments.peer else [False]:
        alone = []
        together = []
        for _ in range(arguments.rounds):
            alone += step_times(arguments, peer, 1)
            together += step_times(arguments, peer, arguments.runs)
        one = statistics.median(alone)
        many = statistics.median(together)
        print(f"| {'PyTorch' if peer else 'Tapestry'} | {one:.1f} | {many:.1f} | {many / one:.2f}x |", flush=True)


if __name__ == "__main__":
    main()
