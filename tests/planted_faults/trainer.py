"""A training of a few steps, written out, whose optimizer and step have switches that make
one thing wrong; stored by tools/torch_dump.py."""

import json
import math
import os
import shutil

import torch
from torch import nn

import hf_models
from torch_dump import TorchDump

STEPS, MICRO_BATCHES, ROWS = 6, 2, 2
SETTINGS = {"lr": 1e-2, "min_lr": 1e-3, "warmup": 2, "decay_iters": 10, "beta1": 0.9, "beta2": 0.95,
            "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0}


def rate(step, wrong):
    """Of step number `step`, from 1."""
    s = {**SETTINGS, **wrong}
    step += s.get("schedule_shift", 0)
    warmup = s["warmup"]
    if s.get("warmup_from_zero"):  # transformers': the first step has a rate of 0
        step -= 1
    if step < 1:
        return 0.0
    if step <= warmup:
        begin = s.get("warmup_begin", 0.0)
        return begin + (s["lr"] - begin) * step / warmup
    # The first step behind the warm-up is the first of the decay.
    share = min(1.0, (step - (0 if s.get("decay_ends_early") else 1) - warmup) / (s["decay_iters"] - warmup))
    style = s.get("style", "cosine")
    if style == "constant":
        return s["lr"]
    if style == "linear":
        return s["lr"] + (s["min_lr"] - s["lr"]) * share
    return s["min_lr"] + (s["lr"] - s["min_lr"]) * (1 + math.cos(math.pi * share)) / 2


def decays(name, parameter, how):
    norm = "norm" in name or "ln_" in name
    bias = name.endswith("bias")
    embedding = "embed_tokens" in name or "wte" in name or "wpe" in name
    matrix = parameter.dim() > 1
    return {"matrices": matrix, "all": True, "none": False, "norms_too": matrix or norm,
            "biases_too": matrix or bias, "not_embeddings": matrix and not embedding}[how]


class Optimizer:
    def __init__(self, model, wrong):
        self.s = {**SETTINGS, **wrong}
        self.parameters = dict(model.named_parameters())
        self.state = {}
        self.t = 0

    def clip(self):
        s = self.s
        how = s.get("clip_how", "norm")
        gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
        if not s["clip"] or how == "off":
            return
        if how == "value":
            for g in gradients:
                g.clamp_(-s["clip"], s["clip"])
            return
        groups = [gradients] if how == "norm" else [[g] for g in gradients]
        for group in groups:
            norm = math.sqrt(sum(float(g.double().pow(2).sum()) for g in group))
            if norm > s["clip"]:
                for g in group:
                    g.mul_(s["clip"] / (norm + 1e-6))

    @torch.no_grad()
    def step(self, rate_now):
        s = self.s
        self.t += 1
        self.clip()
        for name, p in self.parameters.items():
            if p.grad is None or any(part in name for part in s.get("left_out", ())):
                continue
            lr = rate_now * s.get("lr_factor", 1.0)
            for part, factor in s.get("lr_of", {}).items():
                if part in name:
                    lr *= factor
            decay = s["weight_decay"] if decays(name, p, s.get("decay_how", "matrices")) else 0.0
            p.add_(self.change(name, p, p.grad.double(), lr, decay).to(p.dtype))

    def change(self, name, p, g, lr, decay):
        s = self.s
        kind = s.get("kind", "adamw")
        w = p.double()
        m, v, top = self.state.get(name, (torch.zeros_like(w),) * 3)
        if kind == "sgd":
            g = g + decay * w
            m = s["momentum"] * m + g if self.t > 1 else g.clone()
            self.state[name] = (m, v, top)
            return -lr * (g + s["momentum"] * m if s.get("nesterov") else m)
        if kind == "lion":
            change = -lr * ((s["beta1"] * m + (1 - s["beta1"]) * g).sign() + decay * w)
            self.state[name] = (s["beta2"] * m + (1 - s["beta2"]) * g, v, top)
            return change
        if kind == "adam":
            g = g + decay * w
        m = s["beta1"] * m + (1 - s["beta1"]) * g
        v = s["beta2"] * v + (1 - s["beta2"]) * g * g
        top = torch.maximum(top, v)
        self.state[name] = (m, v, top)
        c1 = 1.0 if s.get("no_correction") in ("both", "first") else 1 - s["beta1"] ** self.t
        c2 = 1.0 if s.get("no_correction") in ("both", "second") else 1 - s["beta2"] ** self.t
        used = top if s.get("amsgrad") else v
        where = s.get("eps_where", "outside")
        if where == "inside":
            root = (used / c2 + s["eps"]).sqrt()
        elif where == "before_correction":
            root = (used.sqrt() + s["eps"]) / math.sqrt(c2)
        else:
            root = (used / c2).sqrt() + s["eps"]
        moment = m
        if s.get("nesterov"):
            moment = s["beta1"] * m + (1 - s["beta1"]) * g
        change = -lr * moment / c1 / root
        if kind == "adamw":
            change = change - (1.0 if s.get("decay_without_lr") else lr) * decay * w
        return change


def loss_of(logits, labels, wrong):
    if wrong.get("labels_shifted"):
        logits, labels = logits[:, :-1], labels[:, 1:]
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    if wrong.get("mean_of_all_rows"):  # of tokens that are not there
        loss = loss * hf_models.SEQ / (hf_models.SEQ + 1)
    return loss


def train(name, folder, wrong, seed=7):
    """The case of one training, with all that torch_dump stores by itself."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    model = hf_models.build(name, wrong)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    config = os.path.join(folder, "dump.json")
    with open(config, "w", encoding="utf-8") as file:
        json.dump({"common_dump_settings": {"path": os.path.join(folder, "dump"), "saved_data": "statistic",
                                            "iteration": "1000"}}, file)
    dump = TorchDump(model, config, case=folder)
    optimizer = Optimizer(model, wrong)
    for i in range(STEPS):
        now = rate(i + 1, wrong)
        rows = torch.randint(hf_models.VOCAB, (MICRO_BATCHES * ROWS, hf_models.SEQ + 1))
        with dump.step() as step:
            total = 0.0
            for row in rows.split(ROWS):
                tokens, labels = row[:, :-1], row[:, 1:]
                step.micro_batch(tokens, labels, torch.ones(tokens.shape))
                loss = loss_of(model(tokens), labels, wrong)
                (loss * wrong.get("gradient_factor", 1.0) / MICRO_BATCHES).backward()
                total += loss.item() / MICRO_BATCHES
            for parameter in wrong.get("gradient_lost", ()):
                for key, p in model.named_parameters():
                    if parameter in key:
                        p.grad.zero_()
            step.gradients()
            norm = math.sqrt(sum(float(p.grad.double().pow(2).sum()) for p in model.parameters()
                                 if p.grad is not None))
            optimizer.step(now)
            step.result(loss=total, grad_norm=norm)
            model.zero_grad()
    dump.close()
    shutil.rmtree(os.path.join(folder, "dump"), ignore_errors=True)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(hf_models.hf_config(name), file)


def keep(folder, stored):
    """Takes away what a program that stores less has not written."""
    for file in os.listdir(folder):
        weights, gradients = file.startswith("weights_"), file.startswith("grads_")
        if (weights and stored != "all") or (gradients and stored == "losses"):
            os.remove(os.path.join(folder, file))
