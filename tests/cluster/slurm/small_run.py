"""A run so small that a step takes milliseconds, and what it leaves behind."""

import json
import math

STEPS = 120

CONFIGURATION = """\
training_config:
  seed: 1337
  output_dir: {output}
  training_iters: {steps}
  log_interval: 20
  eval_interval: null
  save_interval: 1
  keep_checkpoint_max: 2
  exact: {exact}
dataset_config:
  text: [text.txt]
  tokenizer_type: byte
  split: "1"
  batch_size: {batch}
model_config:
  num_layers: 2
  hidden_size: 32
  ffn_hidden_size: 64
  num_attention_heads: 2
  vocab_size: 260
  seq_length: 32
  qkv_has_bias: False
optimizer_config:
  learning_rate: 1.0e-3
  eps: 1.0e-6
"""


def write_text(path):
    """A few kilobytes that a small model can learn."""
    who, where = ("the king", "a servant", "the prophet"), ("the city", "the house", "the river")
    path.write_text("".join(f"And {who[i * 7 % 3]} went to {where[i // 3 % 3]} with {i * 37 % 101} men.\n"
                            for i in range(400)))


def write_configuration(path, output, batch=2, exact=True, steps=STEPS):
    """`batch`: samples of a rank in a step; with two ranks at the start of the run a step has twice that."""
    path.write_text(CONFIGURATION.format(output=output, batch=batch, exact=exact, steps=steps))
    return path


def lines_of(output):
    """The whole lines of metrics.jsonl, which may be growing."""
    try:
        text = (output / "metrics.jsonl").read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def last_step(output):
    lines = lines_of(output)
    return lines[-1]["step"] if lines else 0


def differences(expected, found, bits=True):
    """What is wrong with the steps of a run, beside those of the run that nobody has disturbed: a text,
    empty if nothing is. With bits losses, norms and the hash of each step are the same; without they
    are close to it, as in two layouts."""
    members = ["loss", "grad_norm", "lr", "tokens", "loss_tokens", "hash"]
    steps = [line["step"] for line in found]
    if steps != [line["step"] for line in expected]:
        return f"its steps are not 1 to {len(expected)}, once each: {steps}"
    for one, other in zip(expected, found):
        for name in members:
            if bits and one.get(name) != other.get(name):
                return f"step {one['step']}: {name} is {other.get(name)}, without interruptions {one.get(name)}"
        if not math.isclose(one["loss"], other["loss"], rel_tol=1e-4):
            return f"step {one['step']}: loss {other['loss']}, without interruptions {one['loss']}"
    return ""
