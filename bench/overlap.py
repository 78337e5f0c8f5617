#!/usr/bin/env python3
"""Shows how much of a slow network two ranks hide behind their computing; docs/scaling.md.

Each message takes 20 ms longer (TAPESTRY_COMM_DELAY_MS). A layout's steps are timed with the delay and
without, where collectives move on while ranks compute (TAPESTRY_COMM_PROGRESS=thread) and where each is
waited for at once (none). What the delay costs in the second case and not in the first is hidden. What
can be hidden is counted from the layout: the messages that have computing beside them, at most what the
delay costs where nothing overlaps. Needs only the standard library.

    cmake --preset release && cmake --build build/release --target pretrain_gpt
    bench/overlap.py > build/overlap.md
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
LAYERS = 4
WARMUP = 2  # steps that first touch memory
# Matrices of at most 256 K elements: one segment for each of two ranks.
SMALL = {
    "model_config.num_layers": LAYERS,
    "model_config.hidden_size": 256,
    "model_config.ffn_hidden_size": 1024,
    "model_config.vocab_size": 512,
    "model_config.seq_length": 1024,
    "dataset_config.micro_batch_num": 1,
}
DATA_PARALLEL = {
    **SMALL,
    "dataset_config.batch_size": 8,
    "training_config.wrap_with_ddp": True,
    "training_config.bucket_size": 1,  # a bucket for each parameter
    "training_config.overlap_grad_reduce": True,
}
# qkv, out_proj, mapping, projection of each layer and the embedding; two norms a layer and one.
MATRICES = 4 * LAYERS + 1
VECTORS = 2 * LAYERS + 1


class Layout:
    """A name, settings, and the messages between two ranks that have computing beside them."""

    def __init__(self, name, hideable, settings):
        self.name = name
        self.hideable = hideable
        self.settings = settings


def layouts():
    sharded = {**DATA_PARALLEL, "training_config.use_distributed_optimizer": True}
    return [
        # An all-reduce is a contribution and a result, of a vector one message; the last one, of the
        # embedding, has nothing beside it.
        Layout("overlap_grad_reduce", 2 * MATRICES + VECTORS - 2, DATA_PARALLEL),
        # One message a bucket; the last one as above.
        Layout("overlap_grad_reduce, z1", MATRICES + VECTORS - 1, sharded),
        # And one for each gather; the first one, of the embedding, is needed at once.
        Layout(
            "overlap_grad_reduce, overlap_param_gather, z1",
            2 * (MATRICES + VECTORS - 1),
            {**sharded, "optimizer_config.overlap_param_gather": True},
        ),
        # The sum of each block's input gradient beside its weight gradient. Those of attention are too
        # small to count; the MLP's and the head's take longer than the two messages.
        Layout(
            "tensor parallel",
            2 * (LAYERS + 1),
            {
                **SMALL,
                "parallel_config.tensor_model_parallel_size": 2,
                "model_config.ffn_hidden_size": 16384,
                "model_config.vocab_size": 16384,
                "dataset_config.batch_size": 1,
            },
        ),
        # Keys and values are gathered in four parts, each but the first beside the attention of the one
        # before, in forward and backward.
        Layout(
            "context parallel",
            2 * 3 * LAYERS,
            {
                **SMALL,
                "parallel_config.context_parallel_size": 2,
                "model_config.seq_length": 8192,
                "dataset_config.batch_size": 1,
            },
        ),
        # Of four messages of a layer and micro-batch the one to the experts in forward, and its
        # gradient's way back, have the shared expert beside them.
        Layout(
            "moe_shared_expert_overlap",
            4 * 2 * LAYERS,
            {
                **SMALL,
                "parallel_config.expert_model_parallel_size": 2,
                "model_config.seq_length": 512,
                "dataset_config.batch_size": 1,
                "dataset_config.micro_batch_num": 4,
                "moe_config.num_experts": 8,
                "moe_config.moe_router_topk": 2,
                "moe_config.moe_ffn_hidden_size": 1024,
                "moe_config.moe_shared_expert_intermediate_size": 8192,
                "moe_config.moe_shared_expert_overlap": True,
            },
        ),
    ]


def step_ms(layout, options, folder, delay, progress):
    """Median time of a step."""
    output = folder / "output"
    shutil.rmtree(output, ignore_errors=True)
    settings = {
        "training_config.output_dir": output,
        "training_config.training_iters": options.steps + WARMUP,
        "training_config.eval_interval": "null",
        "training_config.save_interval": "null",
        "training_config.save_last": "False",
        **layout.settings,
    }
    command = ["mpirun", "-n", "2", "--bind-to", "core", str(options.program)]
    command += ["--config_path", str(options.config)]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    environment = dict(
        os.environ,
        OMP_NUM_THREADS="1",
        TAPESTRY_COMM_DELAY_MS=str(delay),
        TAPESTRY_COMM_PROGRESS=progress,
    )
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"overlap: {layout.name} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    lines = (output / "metrics.jsonl").read_text().splitlines()[WARMUP:]
    return statistics.median(json.loads(line)["step_time_ms"] for line in lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default=ROOT / "examples/gpt/pretrain_gpt_tiny.yaml")
    parser.add_argument("--program", default=ROOT / "build/release/examples/gpt/pretrain_gpt")
    parser.add_argument("--delay", type=float, default=20, help="ms of a message")
    parser.add_argument("--steps", type=int, default=3, help="steps that are timed, after two")
    parser.add_argument("--only", default="", help="a part of layouts' names")
    options = parser.parse_args()
    options.config = pathlib.Path(options.config).resolve()
    options.program = pathlib.Path(options.program).resolve()
    print("| | ms a step | delay costs, nothing overlaps | delay costs | can be hidden | hidden |")
    print("|---|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for layout in layouts():
            if options.only not in layout.name:
                continue
            times = {
                (delay, progress): step_ms(layout, options, folder, delay, progress)
                for progress in ("none", "thread")
                for delay in (0, options.delay)
            }
            cost = {p: times[options.delay, p] - times[0, p] for p in ("none", "thread")}
            hideable = min(layout.hideable * options.delay, cost["none"])
            hidden = cost["none"] - cost["thread"]
            print(
                f"| {layout.name} | {times[0, 'thread']:,.0f} | {cost['none']:,.0f} "
                f"| {cost['thread']:,.0f} | {hideable:,.0f} | {hidden / hideable:.0%} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
