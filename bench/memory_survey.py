#!/usr/bin/env python3
"""Compares the estimated memory of random configurations with what their runs reach.

A configuration is a small model in a random layout of up to four ranks, with random dtypes, optimizer and
recomputation. Each is trained for a few steps, in which the kernel counts the peak resident size of every
rank's process; the estimate must not be below the largest, and is to be little above. The same seed gives
the same configurations. Estimates are made by the program memory_parts, so that results of runs can be
held against a changed estimate without running them again. Needs only the standard library.

    cmake --preset release -DTAPESTRY_BUILD_BENCH=ON
    cmake --build build/release --target pretrain_gpt memory_parts
    bench/memory_survey.py run --seed 1 --count 20 --folder build/survey
    bench/memory_survey.py compare --folder build/survey

`compare` ends with 1 where an estimate was below what was reached, or a run failed. `check` does both.
"""
import argparse
import json
import os
import pathlib
import random
import re
import resource
import shutil
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MIB = 2**20
KINDS = ("parameters", "gradients", "optimizer", "activations", "workspace")
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
MOST_TOGETHER = 2000 * MIB  # of all ranks
MOST_WORK = 4e11  # multiply-adds of a step, of all ranks
VOCABULARY = 1024  # the smallest of a survey, of which its tokens are
PREPARE = f"""training_config: {{training_iters: 1, save_last: False}}
dataset_config: {{dataset_dir: FOLDER}}
model_config: {{num_layers: 1, hidden_size: 64, ffn_hidden_size: 64, num_attention_heads: 1,
  vocab_size: {VOCABULARY}, seq_length: 128}}
optimizer_config: {{learning_rate: 1.0e-4}}
"""


class Draw:
    """Random choices that make up one configuration."""

    def __init__(self, rng):
        self.rng = rng
        self.sections = {name: {} for name in ("training_config", "dataset_config", "model_config",
                                               "optimizer_config", "parallel_config")}

    def set(self, section, **keys):
        self.sections.setdefault(section + "_config", {}).update(keys)

    def pick(self, *choices):
        return self.rng.choice(choices)

    def chance(self, share):
        return self.rng.random() < share

    def make(self):
        self.family()
        self.sizes()
        self.layout()
        self.numbers()
        self.optimizer()
        self.recomputation()
        if self.kind == "moe":
            self.experts()
        if self.chance(0.12) and self.kind in ("gpt", "llama"):
            self.adapters()
        return self

    def family(self):
        self.kind = self.pick("gpt", "gpt", "llama", "llama", "llama", "moe", "moe", "mla", "mixer")
        gpt = self.kind == "gpt"
        biases = gpt and self.chance(0.7)
        act = self.pick("gelu", "gelu", "relu", "silu") if gpt else "swiglu"
        self.set("model", normalization="LayerNorm" if gpt else "RMSNorm", hidden_act=act,
                 position_embedding_type="learned_absolute" if gpt and self.chance(0.7) else "rope",
                 qkv_has_bias=biases, out_proj_has_bias=biases, mlp_has_bias=biases,
                 untie_embeddings_and_output_weights=self.chance(0.5))
        if self.kind == "llama" and self.chance(0.3):
            self.set("model", qk_layernorm=True)
        if self.kind == "llama" and self.chance(0.15):
            self.set("model", use_sandwich_norm=True)

    def sizes(self):
        head = self.pick(32, 64, 64, 128)
        hidden = head * self.pick(4, 6, 8, 10, 12, 16)
        hidden = min(hidden, 1024) // head * head
        heads = hidden // head
        self.hidden, self.heads = hidden, heads
        self.layers = self.rng.randint(2, 10)
        width = self.pick(2, 8 / 3, 3.5, 4)
        self.ffn = int(hidden * width) // 64 * 64
        self.vocabulary = self.pick(1024, 2048, 4096, 8192, 16384, 32000, 50304)
        self.seq = self.pick(128, 256, 512, 1024)
        self.set("model", num_layers=self.layers, hidden_size=hidden, num_attention_heads=heads,
                 ffn_hidden_size=self.ffn, vocab_size=self.vocabulary, seq_length=self.seq)
        if self.kind in ("llama", "moe") and self.chance(0.6):
            self.set("model", group_query_attention=True,
                     num_query_groups=self.pick(*[g for g in (1, 2, 4) if heads % g == 0]))
        if self.kind == "mla":
            self.set("model", multi_latent_attention=True, q_lora_rank=self.pick(None, 128, 256),
                     kv_lora_rank=self.pick(64, 128, 256), qk_head_dim=self.pick(32, 64),
                     qk_pos_emb_head_dim=self.pick(16, 32), v_head_dim=self.pick(32, 64))
        if self.kind == "mixer":
            self.mixers()
        if self.chance(0.15):
            self.set("model", fused_linear_cross_entropy=False)

    def mixers(self):
        other = self.pick("linear_attention", "conv", "mamba", "sliding_attention")
        kinds = ["full_attention" if i % 3 == 2 else other for i in range(self.layers)]
        self.set("model", layer_types=kinds)
        if other == "linear_attention":
            self.set("model", linear_num_key_heads=4, linear_num_value_heads=8, linear_key_head_dim=32,
                     linear_value_head_dim=32)
        if other == "mamba":
            self.set("model", mamba_head_dim=32, mamba_num_groups=4, mamba_state_dim=32)
        if other == "sliding_attention":
            self.set("model", window_size=[self.seq // 4, 0])

    def layout(self):
        self.ranks = self.pick(1, 1, 2, 2, 2, 4, 4)
        sizes = {"tp": 1, "pp": 1, "cp": 1, "dp": 1, "ep": 1}
        left = self.ranks
        while left > 1:
            axes = ["tp", "tp", "pp", "pp", "dp", "dp", "dp", "cp"]
            if self.kind in ("mixer", "mla"):
                axes = ["pp", "dp", "dp", "tp"]
            sizes[self.pick(*axes)] *= 2
            left //= 2
        if self.kind == "moe" and sizes["dp"] > 1 and self.chance(0.7):
            sizes["ep"] = sizes["dp"]
        self.at = sizes
        self.set("parallel", tensor_model_parallel_size=sizes["tp"],
                 pipeline_model_parallel_size=sizes["pp"], context_parallel_size=sizes["cp"])
        if sizes["ep"] > 1:
            self.set("parallel", expert_model_parallel_size=sizes["ep"])
        if sizes["tp"] > 1 and self.chance(0.6):
            self.set("parallel", sequence_parallel=True)
        shared = sizes["dp"] * sizes["cp"] > 1
        if shared:
            level = self.pick(None, None, "z1", "z1", "z2", "z3", "z3")
            self.set("parallel", zero_level=level)
            if self.chance(0.4):
                self.set("training", wrap_with_ddp=True, overlap_grad_reduce=self.chance(0.5), bucket_size=self.pick(500_000, 2_000_000, 5_000_000))
        self.micro = self.pick(1, 1, 2, 2, 4)
        if sizes["pp"] > 1:
            self.micro = self.pick(1, 2, 4, 8)
            if self.layers % (2 * sizes["pp"]) == 0 and self.chance(0.35):
                self.set("parallel", virtual_pipeline_model_parallel_size=2)
                self.micro = self.pick(1, 2) * sizes["pp"]
        self.batch = self.pick(1, 1, 2, 4, 8)
        self.set("dataset", batch_size=self.batch, micro_batch_num=self.micro)
        self.threads = 2 if self.ranks == 1 and self.chance(0.4) else 1
        self.set("training", num_threads=self.threads)

    def numbers(self):
        kind = self.pick("float32", "float32", "bfloat16", "bfloat16", "bf16_params", "float16")
        if kind != "float32":
            compute = "float16" if kind == "float16" else "bfloat16"
            self.set("model", compute_dtype=compute)
        if kind == "bf16_params":
            self.set("model", params_dtype="bfloat16")
        self.compute = kind

    def optimizer(self):
        kind = self.pick("AdamW", "AdamW", "AdamW", "AdamW", "SGD", "Lion", "Muon", "Adafactor", "Came")
        keys = {"optimizer_type": kind, "learning_rate": 1e-4}
        if kind in ("SGD", "Adafactor"):
            keys["momentum"] = self.pick(0.0, 0.9) if kind == "SGD" else 0.0
        if kind == "Came":
            keys["betas"] = [0.9, 0.999]
        if kind in ("AdamW", "Lion"):
            keys["exp_avg_dtype"] = self.pick("float32", "float32", "bfloat16")
        if kind == "AdamW":
            keys["exp_avg_sq_dtype"] = self.pick("float32", "float32", "bfloat16")
            if self.compute == "bfloat16" and self.chance(0.4):
                keys["store_param_remainders"] = True
        keys["main_grads_dtype"] = self.pick("float32", "float32", "float32", "bfloat16")
        keys["clip_grad"] = self.pick(0.0, 1.0, 1.0)
        if self.micro == 1 and self.compute != "float16" and self.ranks == 1 and self.chance(0.4):
            keys.update(optimizer_in_backward=True, clip_grad=0.0, main_grads_dtype="float32")
        self.set("optimizer", **keys)

    def recomputation(self):
        choice = self.rng.random()
        if choice < 0.55:
            return
        if choice < 0.72:
            config = {"recompute": True}
        elif choice < 0.8 and self.at["pp"] == 1:
            config = {"recompute": [self.rng.randint(1, self.layers)]}
        elif choice < 0.9:
            config = {"select_recompute": [".*\\.norm"]}
        else:
            config = {"select_recompute_exclude": True}
        self.sections["recompute_config"] = config

    def experts(self):
        count = self.pick(4, 8)
        keys = {"num_experts": count, "moe_router_topk": self.pick(1, 2, 2),
                "moe_ffn_hidden_size": max(64, self.ffn // self.pick(2, 4) // 64 * 64),
                "moe_router_load_balancing_type": "aux_loss", "moe_aux_loss_coeff": 0.01}
        if keys["moe_router_topk"] == 1:
            keys["moe_router_pre_softmax"] = True
        if self.chance(0.4):
            keys["moe_shared_expert_intermediate_size"] = keys["moe_ffn_hidden_size"]
        if self.chance(0.3):
            keys["first_k_dense_replace"] = 1
        if self.chance(0.3):
            keys["moe_expert_capacity_factor"] = self.pick(1.25, 1.5)
        self.sections["moe_config"] = keys

    def adapters(self):
        self.set("lora", use_lora=True, lora_rank=self.pick(4, 8, 16),
                 target_cells=[{"target_cells": [self.pick(".*", ".*w[qkv].*", ".*attention.*")]}])

    def work(self):
        tokens = self.seq * self.batch * self.micro * self.at["dp"]
        layer = self.hidden * (4 * self.hidden + 3 * self.ffn)
        return 4 * tokens * (self.layers * layer + self.hidden * self.vocabulary)

    def yaml(self, data):
        self.set("training", training_iters=2, eval_iters=1, log_interval=1, seed=7)
        self.set("dataset", data_path=[data], split="900,50,50")  # every run ends with an evaluation
        # Of JSON, every object is YAML.
        return "".join(f"{name}: {json.dumps(keys)}\n" for name, keys in self.sections.items() if keys)

    def label(self):
        at = " ".join(f"{axis}{n}" for axis, n in self.at.items() if n > 1)
        p, o = self.sections["parallel_config"], self.sections["optimizer_config"]
        more = [p.get("zero_level"), "sp" if p.get("sequence_parallel") else None,
                "vpp" if "virtual_pipeline_model_parallel_size" in p else None,
                "oib" if o.get("optimizer_in_backward") else None,
                "rem" if o.get("store_param_remainders") else None,
                "lora" if "lora_config" in self.sections else None,
                json.dumps(self.sections["recompute_config"]) if "recompute_config" in self.sections else None]
        return " ".join([self.kind, self.compute, at or "1 rank", *[m for m in more if m],
                         o["optimizer_type"], f"b{self.batch}x{self.micro}"])


def estimates(program, files):
    """What memory_parts says of (data-parallel ranks, file)."""
    text = "".join(f"{ranks} {file}\n" for ranks, file in files)
    done = subprocess.run([program], input=text, text=True, capture_output=True, check=True, cwd=ROOT)
    return [json.loads(line) for line in done.stdout.splitlines()]


def choose(options, folder):
    """Draws configurations until as many as wanted are valid and of the wanted size."""
    rng = random.Random(options.seed)
    chosen = []
    while len(chosen) < options.count:
        drawn = []
        for _ in range(4 * options.count):
            drawn.append(Draw(random.Random(rng.getrandbits(64))).make())
        files = []
        for i, draw in enumerate(drawn):
            file = folder / f"drawn_{options.job}_{i}.yaml"
            file.write_text(draw.yaml(options.data))
            files.append((draw.at["dp"], file))
        for draw, (_, file), parts in zip(drawn, files, estimates(options.parts, files)):
            fits = "error" not in parts and options.least * MIB <= parts["peak"] <= options.most * MIB
            if options.verbose and "error" in parts:
                print("refused:", draw.label(), parts["error"].strip().splitlines()[-1], file=sys.stderr)
            if (fits and parts["peak"] * draw.ranks <= MOST_TOGETHER and draw.work() <= MOST_WORK
                    and len(chosen) < options.count):
                name = f"seed{options.seed}_{len(chosen):02d}"
                if len(chosen) % options.jobs == options.job:
                    shutil.copy(file, folder / f"{name}.yaml")
                chosen.append((name, draw))
            file.unlink()
    return chosen


def bytes_of(text):
    number, unit = text.split()
    return float(number) * UNITS[unit]


def reached(output, ranks):
    """Of every rank, peak bytes by kind from its log, and of its process."""
    found = []
    for rank in range(ranks):
        text = (output / f"log/rank_{rank}/info.log").read_text()
        line = [line for line in text.splitlines() if "info memory: " in line][-1]
        kinds = {kind: bytes_of(re.search(rf"{kind} [^(]*\(peak ([^)]*)\)", line)[1]) for kind in KINDS}
        kinds["tensors"] = bytes_of(re.search(r"peak together ([\d.]+ \w+)", line)[1])
        found.append(kinds)
    return found


def run_one(options, name, draw, folder):
    output = folder / f"{name}_out"
    shutil.rmtree(output, ignore_errors=True)
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    launcher = ["mpirun", "-n", str(draw.ranks), "--oversubscribe", "--bind-to", "none"] if draw.ranks > 1 else []
    command = launcher + [sys.executable, __file__, "rank", "--folder", str(folder / f"{name}_peaks"), "--",
                          options.program, "--config_path", str(folder / f"{name}.yaml"), "--set",
                          f"training_config.output_dir={output}"]
    shutil.rmtree(folder / f"{name}_peaks", ignore_errors=True)
    (folder / f"{name}_peaks").mkdir()
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    result = {"name": name, "label": draw.label(), "ranks": draw.ranks, "dp": draw.at["dp"]}
    if done.returncode != 0:
        result["error"] = (done.stdout + done.stderr)[-1500:]
    else:
        peaks = sorted((folder / f"{name}_peaks").iterdir())
        result["process"] = [int(peak.read_text()) for peak in peaks]
        result["kinds"] = reached(output, draw.ranks)
        result["metrics"] = json.loads((output / "metrics.jsonl").read_text().splitlines()[-1])["memory"]
    shutil.rmtree(output, ignore_errors=True)
    shutil.rmtree(folder / f"{name}_peaks", ignore_errors=True)
    return result


def prepare_data(options, folder):
    """The default text as tokens; where they are."""
    config = folder / "prepare.yaml"
    config.write_text(PREPARE.replace("FOLDER", str(folder / "data")))
    subprocess.run([options.program, "--config_path", config, "--overwrite", "--set",
                    f"training_config.output_dir={folder / 'prepare_out'}"], cwd=ROOT, check=True,
                   stdout=subprocess.DEVNULL)
    shutil.rmtree(folder / "prepare_out", ignore_errors=True)
    return str(next((folder / "data").glob("*_text_document.bin")).with_suffix(""))


def run(options):
    folder = pathlib.Path(options.folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    options.data = options.data or prepare_data(options, folder)
    results = folder / "results.jsonl"
    known = set()
    if results.exists():
        known = {json.loads(line)["name"] for line in results.read_text().splitlines()}
    for number, (name, draw) in enumerate(choose(options, folder)):
        if name in known or number % options.jobs != options.job:
            continue
        result = run_one(options, name, draw, folder)
        with results.open("a") as file:
            file.write(json.dumps(result) + "\n")
        print(name, result["label"], "error" if "error" in result else max(result["process"]) // MIB, flush=True)


def rank(options):
    """Runs one rank, and writes its process's peak to a file of its own."""
    code = subprocess.call(options.command)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    me = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0"))
    (pathlib.Path(options.folder) / f"{int(me):04d}").write_text(str(peak))
    return code


def compare(options):
    folder = pathlib.Path(options.folder).resolve()
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    failed = [row for row in rows if "error" in row]
    rows = [row for row in rows if "error" not in row and row["name"].startswith(options.only)]
    parts = estimates(options.parts, [(row["dp"], folder / f"{row['name']}.yaml") for row in rows])
    slacks = []
    for row, estimate in zip(rows, parts):
        most = max(row["process"])
        row.update(estimate=estimate, slack=estimate["peak"] / most - 1)
        slacks.append(row["slack"])
    for row in sorted(rows, key=lambda row: row["slack"]):
        estimate, most = row["estimate"], max(row["process"])
        where = row["process"].index(most)
        kinds = row["kinds"][where]
        print(f"{100 * row['slack']:+6.1f} % {row['name']:10} of {most / MIB:5.0f} (tensors {kinds['tensors'] / MIB:5.0f}, "
              f"rank {where}); estimate {estimate['peak'] / MIB:5.0f}: "
              + ", ".join(f"{kind[:3]} {estimate[kind] / MIB:.0f}/{kinds[kind] / MIB:.0f}" for kind in KINDS)
              + f", log {estimate['logits'] / MIB:.0f}; {row['label']}")
    broken = sum(slack < 0 for slack in slacks)
    print(f"{len(slacks)} configurations, bound broken {broken} times, slack: median {100 * statistics.median(slacks):.1f} %, "
          f"largest {100 * max(slacks):.1f} %, smallest {100 * min(slacks):.1f} %; estimate takes "
          f"{statistics.median(part['microseconds'] for part in parts):.0f} us; {len(failed)} runs failed")
    for row in failed:
        print(row["name"], row["label"], row["error"].strip().splitlines()[-1][:300])
    return 1 if broken or failed else 0


def check(options):
    """Runs into an empty folder, and compares."""
    shutil.rmtree(options.folder, ignore_errors=True)
    run(options)
    return compare(options)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "compare", "check", "rank"))
    parser.add_argument("--folder", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--data", help="prefix of tokens with ids below 1,024 (default: made of the default text)")
    parser.add_argument("--least", type=int, default=250, help="MiB of the estimate of one rank")
    parser.add_argument("--most", type=int, default=900, help="the same")
    parser.add_argument("--jobs", type=int, default=1, help="runs every so many of the configurations, from")
    parser.add_argument("--job", type=int, default=0, help="this one on: for several at a time")
    parser.add_argument("--only", default="", help="compare those whose names begin so")
    parser.add_argument("--build-dir", default=str(ROOT / "build/release"))
    parser.add_argument("--program")
    parser.add_argument("--parts")
    parser.add_argument("--verbose", action="store_true")
    arguments = sys.argv[1:]
    command = arguments[arguments.index("--") + 1:] if "--" in arguments else []
    options = parser.parse_args(arguments[:len(arguments) - len(command) - 1] if command else arguments)
    options.command = command
    options.program = options.program or options.build_dir + "/examples/gpt/pretrain_gpt"
    options.parts = options.parts or options.build_dir + "/bench/memory_parts"
    return {"run": run, "compare": compare, "check": check, "rank": rank}[options.what](options) or 0


if __name__ == "__main__":
    sys.exit(main())
