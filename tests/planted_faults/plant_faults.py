"""Plants faults in trainings of small Hugging Face models in PyTorch and has pretrain_gpt --find_fault
look for them.

    /usr/bin/python3 tests/planted_faults/plant_faults.py --program build/release/examples/gpt/pretrain_gpt

For each model and for each amount of what a reference stores (all; no weights of steps; losses and norms
alone) a training in which nothing is wrong, which has to agree, and then one fault after the other: of the
reference, or of ours, whose configuration is changed. A fault is found if the verdict is `differ`, and named
if the sentences say what it is. Prints each, and counts. Exit code 1: fewer than 95 % found, fewer than 90 %
named, or an alarm. 77: no PyTorch.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

try:
    import numpy  # noqa: F401
    import torch  # noqa: F401
except ImportError:
    print("skipped: no PyTorch")
    sys.exit(77)

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "tools"))
import hf_models  # noqa: E402
import trainer  # noqa: E402
from fault_list import FAULTS  # noqa: E402


def run_yaml(name, case):
    s = trainer.SETTINGS
    lines = ["training_config:", f"  training_iters: {trainer.STEPS}",
             f"  load_checkpoint: {case}/init.safetensors", "dataset_config:",
             f"  step_data_dir: {case}/data", f"  batch_size: {trainer.ROWS}",
             f"  micro_batch_num: {trainer.MICRO_BATCHES}", "model_config:", "  compute_dtype: float32"]
    lines += [f"  {key}: {value}" for key, value in hf_models.our_model(name).items()]
    lines += ["optimizer_config:", "  optimizer_type: AdamW", f"  learning_rate: {s['lr']}",
              f"  betas: [{s['beta1']}, {s['beta2']}]", f"  eps: {s['eps']:.1e}",
              f"  weight_decay: {s['weight_decay']}", f"  clip_grad: {s['clip']}", "  lr_decay_style: cosine",
              f"  lr_warmup_iters: {s['warmup']}", f"  lr_decay_iters: {s['decay_iters']}",
              f"  min_lr: {s['min_lr']}"]
    if name == "mixtral":
        lines += ["moe_config:", f"  num_experts: {hf_models.EXPERTS}", "  moe_router_topk: 2"]
    return "\n".join(lines) + "\n"


def look(program, folder, name, fault, stored):
    case = os.path.join(folder, "case")
    trainer.train(name, case, fault.wrong)
    trainer.keep(case, stored)
    config = os.path.join(folder, "run.yaml")
    with open(config, "w", encoding="utf-8") as file:
        file.write(run_yaml(name, case))
    command = [program, "--config_path", config, "--find_fault", case]
    for change in fault.ours:
        command += ["--set", change]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    said = [line for line in done.stdout.splitlines() if not re.match(r"\d{4}-\d\d-\d\d ", line)]
    return done.returncode, "\n".join(said) + done.stderr


def verdict_of(said):
    """What is said before the table of stages, which names much that is not to blame."""
    return re.split(r"\n\s*stage +compared", said)[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--models", default="gpt2,llama,qwen3,mixtral")
    parser.add_argument("--stored", default="all,gradients,losses")
    parser.add_argument("--kind", default="", help="optimizer or model; else both")
    parser.add_argument("--only", default="", help="a regular expression of names of faults")
    parser.add_argument("--every", type=int, default=1, help="each n-th fault")
    parser.add_argument("--keep", default="", help="a folder for the cases; else they are removed")
    parser.add_argument("--verbose", action="store_true", help="print all that is said")
    options = parser.parse_args()
    program = os.path.abspath(options.program)
    clean = found = named = planted = alarms = 0
    failed = []
    with tempfile.TemporaryDirectory() as temporary:
        for name in options.models.split(","):
            for stored in options.stored.split(","):
                chosen = [f for f in FAULTS if f.is_for(name, stored) and re.search(options.only, f.name)
                          and (f.kind in ("", options.kind) or not options.kind)]
                faults = [f for f in chosen if not f.says]
                faults += [f for f in chosen if f.says][::options.every]
                for fault in faults:
                    folder = os.path.join(options.keep or temporary, f"{name}_{stored}_{fault.name}")
                    shutil.rmtree(folder, ignore_errors=True)
                    os.makedirs(folder)
                    code, said = look(program, os.path.abspath(folder), name, fault, stored)
                    label = f"{name:8} {stored:10} {fault.name}"
                    if not fault.says:
                        clean += 1
                        alarms += code != 0
                        verdict = "agrees" if code == 0 else "ALARM"
                    else:
                        planted += 1
                        is_found = code == 1
                        is_named = is_found and re.search(fault.says_of(stored), verdict_of(said)) is not None
                        found += is_found
                        named += is_named
                        verdict = "named" if is_named else "found, NOT NAMED" if is_found else "NOT FOUND"
                    if "named" != verdict != "agrees":
                        failed.append(f"{label}: {verdict}")
                    print(f"{label:45} {verdict}", flush=True)
                    if options.verbose or verdict not in ("named", "agrees"):
                        print("    " + said.strip().replace("\n", "\n    ")[:3000], flush=True)
                    if not options.keep:
                        shutil.rmtree(folder)
    print(f"\n{planted} faults, {found} found, {named} named; {clean} clean trainings, {alarms} alarms")
    print("\n".join(failed))
    ok = alarms == 0 and found >= 0.95 * planted and named >= 0.9 * planted and planted + clean > 0
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
