#!/usr/bin/env python3
"""Times the same training steps in several layouts under mpirun and prints Markdown tables.

Every rank has one thread; the layout of one rank has as many threads as the others have ranks. The
layouts run in turn, round after round, so that a machine that gets slower meanwhile is the same for all;
ratios are medians of the rounds' ratios. Needs only the standard library.

    cmake --preset release && cmake --build build/release --target pretrain_gpt
    bench/layouts.py --rounds 3 > build/layouts.md
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PARALLEL = "parallel_config."
KINDS = ("parameters", "gradients", "optimizer", "activations", "workspace")
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


class Layout:
    """A name, the number of ranks, and what it sets; micro-batches of one rank."""

    def __init__(self, name, ranks, micro_batches, **settings):
        self.name = name
        self.ranks = ranks
        self.micro_batches = micro_batches
        self.settings = {
            (key if "." in key else PARALLEL + key): value for key, value in settings.items()
        }


def layouts(micro_batches):
    """Those of two ranks; `micro_batches` is the number that pipelines divide the batch into."""
    tp = "tensor_model_parallel_size"
    pp = "pipeline_model_parallel_size"
    overlap = {"training_config.overlap_grad_reduce": True}
    return [
        Layout("one process", 1, 1),
        Layout("dp 2", 2, 1),
        Layout("dp 2, z1", 2, 1, zero_level="z1"),
        Layout("dp 2, z1, overlapped", 2, 1, zero_level="z1", **overlap),
        Layout("dp 2, z2", 2, 1, zero_level="z2"),
        Layout("dp 2, z3", 2, 1, zero_level="z3"),
        Layout("tp 2", 2, 1, **{tp: 2}),
        Layout("tp 2, sp", 2, 1, **{tp: 2, "sequence_parallel": True}),
        Layout("pp 2, [6, 6]", 2, micro_batches, **{pp: 2}),
        Layout("pp 2, [8, 4]", 2, micro_batches, **{pp: 2, "num_layer_list": "[8,4]"}),
        Layout("pp 2, [9, 3]", 2, micro_batches, **{pp: 2, "num_layer_list": "[9,3]"}),
    ]


def run(layout, options, folder):
    """Step times in ms, without the first ones, and the peak bytes by kind of every rank."""
    output = folder / "output"
    shutil.rmtree(output, ignore_errors=True)
    data_parallel = 1
    if not any("model_parallel_size" in key for key in layout.settings):
        data_parallel = layout.ranks
    batch = options.batch // data_parallel // layout.micro_batches
    settings = {
        "training_config.output_dir": output,
        "training_config.training_iters": options.steps + options.warmup,
        "training_config.eval_interval": "null",
        "training_config.save_interval": "null",
        "training_config.save_last": "False",
        "dataset_config.batch_size": batch,
        "dataset_config.micro_batch_num": layout.micro_batches,
        "model_config.seq_length": options.seq,
        **dict(setting.split("=", 1) for setting in options.set),
        **layout.settings,
    }
    command = [str(options.program), "--config_path", str(options.config)]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    threads = options.threads if layout.ranks == 1 else options.threads // layout.ranks
    environment = dict(os.environ, OMP_NUM_THREADS=str(max(threads, 1)))
    if layout.ranks > 1:
        command = ["mpirun", "-n", str(layout.ranks), "--bind-to", "core"] + command
    print("layouts:", layout.name, file=sys.stderr, flush=True)
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"layouts: {layout.name} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    lines = (output / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines][options.warmup :]
    bubbles = [step["bubble"] for step in steps if "bubble" in step]
    memory = [memory_of(log) for log in sorted(output.glob("log/rank_*/info.log"))]
    return [step["step_time_ms"] for step in steps], memory, bubbles, steps[-1]["loss"]


def memory_of(log):
    """Peak bytes by kind, of the last line in a log that tells them."""
    line = [text for text in log.read_text().splitlines() if " memory: " in text][-1]
    peaks = {}
    for kind in KINDS:
        number, unit = re.search(kind + r" [^(]*\(peak ([0-9.]+) (\w+)\)", line).groups()
        peaks[kind] = float(number) * UNITS[unit]
    number, unit = re.search(r"peak together ([0-9.]+) (\w+)", line).groups()
    peaks["together"] = float(number) * UNITS[unit]
    return peaks


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default=ROOT / "examples/gpt/pretrain_gpt_124M.yaml")
    parser.add_argument("--program", default=ROOT / "build/release/examples/gpt/pretrain_gpt")
    parser.add_argument("--batch", type=int, default=8, help="sequences of a step, on all ranks")
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--steps", type=int, default=4, help="steps that are timed")
    parser.add_argument("--warmup", type=int, default=2, help="steps before them")
    parser.add_argument("--micro-batches", type=int, default=8, help="of a pipeline")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2, help="of the single process")
    parser.add_argument("--only", default="", help="comma-separated parts of layouts' names")
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value")
    options = parser.parse_args()
    options.config = pathlib.Path(options.config).resolve()
    options.program = pathlib.Path(options.program).resolve()
    wanted = [part for part in options.only.split(",") if part]
    chosen = [
        layout
        for layout in layouts(options.micro_batches)
        if layout.ranks == 1 or not wanted or any(part in layout.name for part in wanted)
    ]
    medians = {layout.name: [] for layout in chosen}
    last = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            for layout in chosen:
                times, *rest = run(layout, options, pathlib.Path(folder))
                medians[layout.name].append(statistics.median(times))
                last[layout.name] = rest
    single = medians[chosen[0].name]
    print("| layout | ms a step | of one process | bubble, measured / theory | loss |")
    print("|---|---:|---:|---:|---:|")
    for layout in chosen:
        own = medians[layout.name]
        ratio = statistics.median(a / b for a, b in zip(own, single))
        _, bubbles, loss = last[layout.name]
        bubble = "-"
        if bubbles:
            measured = statistics.median(entry["measured"] for entry in bubbles)
            bubble = f"{measured:.2f} / {bubbles[0]['theoretical']:.2f}"
        print(
            f"| {layout.name} | {statistics.median(own):,.0f} | {ratio:.2f}x | {bubble} | {loss:.6f} |"
        )
    print("\nPeak MiB of each rank:\n")
    print("| layout | rank | " + " | ".join(KINDS) + " | together |")
    print("|---|---:|" + "---:|" * (len(KINDS) + 1))
    for layout in chosen:
        for rank, peaks in enumerate(last[layout.name][0]):
            cells = " | ".join(f"{peaks[kind] / 2**20:,.0f}" for kind in (*KINDS, "together"))
            print(f"| {layout.name} | {rank} | {cells} |")


if __name__ == "__main__":
    main()
