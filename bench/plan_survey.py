#!/usr/bin/env python3
"""Compares what pretrain_gpt --plan predicts with what runs take; docs/plan.md has results.

    plan_survey.py times --seed 1 --count 50     # random models in random layouts: the step's time
    plan_survey.py choice --seed 1 --layouts 24  # one model: the first choice against other layouts

A line of JSON for each run goes to --out; lines that are there already are not run again, so that a
survey may be done in pieces (--limit SECONDS). Runs are started by pretrain_gpt.sh.
"""
import argparse
import csv
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
PROGRAMS = HERE.parent / "build/release/examples/gpt"
SCRIPT = HERE.parent / "examples/gpt/pretrain_gpt.sh"


def divisors(number):
    return [d for d in range(1, number + 1) if number % d == 0]


def random_model(draw):
    """Sections of a small model."""
    heads = draw.choice([4, 8])
    hidden = heads * draw.choice([32, 64])
    model = {
        "num_layers": draw.choice([2, 3, 4, 6, 8]),
        "hidden_size": hidden,
        "ffn_hidden_size": hidden * draw.choice([2, 3, 4]),
        "num_attention_heads": heads,
        "vocab_size": draw.choice([512, 1024, 4096, 8192]),
        "seq_length": draw.choice([64, 128, 256, 512]),
        "position_embedding_type": draw.choice(["rope", "learned_absolute"]),
        "normalization": draw.choice(["RMSNorm", "LayerNorm"]),
        "hidden_act": draw.choice(["gelu", "silu", "swiglu"]),
        "compute_dtype": draw.choice(["float32", "float32", "bfloat16"]),
        "untie_embeddings_and_output_weights": draw.choice([True, False]),
        "hidden_dropout": draw.choice([0.0, 0.0, 0.1]),
    }
    if draw.random() < 0.3:
        model["group_query_attention"] = True
        model["num_query_groups"] = 4
    return model


def random_layout(draw, model):
    """(ranks, sections) of a layout that divides the model."""
    ranks = draw.choice([1, 2, 2, 4, 4, 4])
    tp = draw.choice(divisors(ranks))
    pp = draw.choice([p for p in divisors(ranks // tp) if p <= model["num_layers"]])
    cp = draw.choice(divisors(ranks // tp // pp)) if draw.random() < 0.3 else 1
    dp = ranks // tp // pp // cp
    # Steps of some tens or hundreds of milliseconds on two cores.
    weights = model["num_layers"] * model["hidden_size"] * (4 * model["hidden_size"] + 3 * model["ffn_hidden_size"])
    weights += model["vocab_size"] * model["hidden_size"]
    tokens = 10 ** draw.uniform(9.6, 10.6) / (6 * weights)
    rows = max(1, round(tokens / model["seq_length"] / dp))  # of a data-parallel rank
    micro_batch = draw.choice([d for d in divisors(rows) if d <= 8])
    micro_batches = rows // micro_batch
    parallel = {
        "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": pp,
        "context_parallel_size": cp,
        "data_parallel_size": dp,
    }
    if tp > 1 and draw.random() < 0.5:
        parallel["sequence_parallel"] = True
    if dp * cp > 1 and draw.random() < 0.6:
        parallel["zero_level"] = draw.choice(["z1", "z1", "z2", "z3"])
    if pp > 1 and model["num_layers"] % (2 * pp) == 0 and micro_batches >= pp and draw.random() < 0.3:
        parallel["virtual_pipeline_model_parallel_size"] = 2
    data = {"batch_size": micro_batch, "micro_batch_num": micro_batches}
    return ranks, parallel, data


def configuration(model, parallel, data, options, output):
    """The text of a YAML file; JSON is YAML."""
    return json.dumps(
        {
            "training_config": {
                "output_dir": str(output),
                "training_iters": options.steps,
                "log_interval": None,
                "save_last": False,
                "seed": 1,
            },
            "parallel_config": parallel,
            "dataset_config": {
                "tokenizer_type": "byte",
                "dataset_dir": str(options.work / "dataset"),
                **data,
            },
            "model_config": model,
            "optimizer_config": {"learning_rate": 1e-4, "clip_grad": 1.0, "lr_decay_style": "constant"},
        },
        indent=1,
    )


def run(command, **more):
    done = subprocess.run(command, capture_output=True, text=True, **more)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def median_ms(config, ranks, options, settings=()):
    """Median step of a run."""
    output = options.work / "output"
    shutil.rmtree(output, ignore_errors=True)
    words = [word for setting in settings for word in ("--set", setting)]
    environment = {**os.environ, "RANKS": str(ranks), "PRETRAIN_GPT": str(options.programs / "pretrain_gpt")}
    run(
        [str(SCRIPT), str(config), *words, "--set", f"training_config.output_dir={output}"],
        env=environment,
        timeout=120,
    )
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    times = [line["step_time_ms"] for line in lines]
    return statistics.median(times[min(3, len(times) // 3) :])


def busy_seconds():
    """Processor time that anybody has used, and that of this script and what it has run."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, *interrupts = map(int, file.readline().split()[1:9])
    own = os.times()
    return ((user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK"),
            own.user + own.system + own.children_user + own.children_system)


def quiet_ms(config, ranks, options, settings=()):
    """Median step of a run beside which nothing else has run; of some, the one with the least."""
    least = None
    for _ in range(4):
        start, (all_before, own_before) = time.monotonic(), busy_seconds()
        took = median_ms(config, ranks, options, settings)
        all_after, own_after = busy_seconds()
        others = (all_after - all_before) - (own_after - own_before)
        others /= os.cpu_count() * (time.monotonic() - start)
        if least is None or others < least[0]:
            least = (others, took)
        if others < 0.03:
            break
    return least[1]


def measured(config, ranks, options):
    """What some runs have taken. The fastest counts, as what else runs on the machine only adds."""
    runs = [quiet_ms(config, ranks, options) for _ in range(options.runs)]
    return {"runs": runs, "ms": min(runs)}


def planned(config, ranks, options, table, *more):
    """Rows of the plan's table."""
    run(
        [str(options.programs / "pretrain_gpt"), "--config_path", str(config), "--plan", str(ranks),
         "--table", str(table), *more]
    )
    return rows_of(table)


def rows_of(table):
    with open(table, newline="") as file:
        return list(csv.DictReader(file))


def known_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def survey_times(options):
    known = {line["number"] for line in known_lines(options.out)}
    end = time.monotonic() + options.limit
    for number in range(options.count):
        draw = random.Random(options.seed * 100003 + number)
        model = random_model(draw)
        ranks, parallel, data = random_layout(draw, model)
        if number in known:
            continue
        if time.monotonic() > end:
            return
        config = options.work / "survey.yaml"
        config.write_text(configuration(model, parallel, data, options, options.work / "output"))
        line = {"number": number, "ranks": ranks, "model": model, "parallel": parallel, "data": data}
        try:
            row = planned(config, ranks, options, options.work / "table.csv", "--as_configured")[0]
            line["predicted"] = {name: row[name] for name in row if name.endswith("_ms")}
            line["layout"] = row["layout"]
            line.update(measured(config, ranks, options))
            line["ratio"] = float(row["step_ms"]) / line["ms"]
            print(f"{number}: {line['layout']}: predicted {float(row['step_ms']):.1f} ms, took "
                  f"{line['ms']:.1f} ms: {line['ratio']:.2f}", flush=True)
        except RuntimeError as error:
            line["refused"] = str(error)
            print(f"{number}: {error}", flush=True)
        with open(options.out, "a") as out:
            out.write(json.dumps(line) + "\n")
    report_times(options)


def spread_text(runs_of_each):
    """How much runs of the same configuration differ."""
    spreads = sorted(max(runs) / min(runs) - 1 for runs in runs_of_each if len(runs) > 1)
    if not spreads:
        return ""
    above = sum(spread > 0.2 for spread in spreads)
    return (f"; runs of one configuration differ by {statistics.median(spreads):.1%} (median) to "
            f"{spreads[-1]:.0%}, {above} of {len(spreads)} by more than 20 %")


def report_times(options):
    lines = [line for line in known_lines(options.out) if "ratio" in line]
    ratios = sorted(line["ratio"] for line in lines)
    inside = sum(1 / 1.2 <= ratio <= 1.2 for ratio in ratios)
    print(f"{len(ratios)} runs: {inside} within 20 %, {sum(ratio > 1.2 for ratio in ratios)} above, "
          f"{sum(ratio < 1 / 1.2 for ratio in ratios)} below; median {statistics.median(ratios):.2f}, "
          f"{ratios[0]:.2f} to {ratios[-1]:.2f}{spread_text([line['runs'] for line in lines])}")


def survey_choice(options):
    draw = random.Random(options.seed)
    model = random_model(draw)
    model["num_layers"] = draw.choice([4, 8])
    data = {"batch_size": 1, "micro_batch_num": 16}
    config = options.work / "choice.yaml"
    config.write_text(configuration(model, {"data_parallel_size": 1}, data, options, options.work / "output"))
    table = options.work / f"choice_{options.seed}.csv"  # the first plan counts, not a later one
    rows = rows_of(table) if table.exists() else planned(config, 4, options, table)
    rows = [row for row in rows if row["fits"] == "yes"]
    chosen = [rows[0]] + draw.sample(rows[1:], min(options.layouts - 1, len(rows) - 1))
    end = time.monotonic() + options.limit
    for turn in range(options.runs):  # all layouts one after the other, as the machine may change
        known = {line["layout"] for line in known_lines(options.out) if line["run"] == turn}
        for row in chosen:
            if row["layout"] in known:
                continue
            if time.monotonic() > end:
                return
            took = quiet_ms(config, 4, options, row["settings"].split())
            line = {"layout": row["layout"], "run": turn, "predicted": float(row["step_ms"]), "ms": took,
                    "first": row is rows[0]}
            print(json.dumps(line), flush=True)
            with open(options.out, "a") as out:
                out.write(json.dumps(line) + "\n")
    report_choice(known_lines(options.out))


def report_choice(lines):
    runs = {}
    for line in lines:
        runs.setdefault(line["layout"], []).append(line["ms"])
    first = next(line["layout"] for line in lines if line["first"])
    took = {layout: min(times) for layout, times in runs.items()}
    best = min(took, key=took.get)
    print(f"first choice {first}: {took[first]:.1f} ms; best of {len(took)}: {best}: {took[best]:.1f} ms; "
          f"{took[first] / took[best] - 1:.1%} slower{spread_text(runs.values())}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["times", "choice"])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--layouts", type=int, default=24)
    parser.add_argument("--steps", type=int, default=20, help="of a run")
    parser.add_argument("--runs", type=int, default=2, help="of each configuration")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds after which no run begins")
    parser.add_argument("--programs", type=pathlib.Path, default=PROGRAMS)
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("plan_survey"))
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    options.work = options.work.resolve()
    options.work.mkdir(parents=True, exist_ok=True)
    options.out = options.out or options.work / f"{options.what}_{options.seed}.jsonl"
    (survey_times if options.what == "times" else survey_choice)(options)


if __name__ == "__main__":
    sys.exit(main())
