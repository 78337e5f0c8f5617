"""Writes the dumps and replay cases beside this file, with tools/torch_dump.py.

    /usr/bin/python3 tests/data/torch_dump/make_dump.py [FOLDER]

The models are small ones with the modules, names and orientation that transformers' Llama and GPT-2
have (modeling_llama.py, modeling_gpt2.py), written anew in plain PyTorch. Made with PyTorch 1.13 of
Debian 12. One step each; run.yaml repeats it with pretrain_gpt.

`three_steps` are replay cases of three steps of the Llama without a dump, as tools/torch_dump.py writes
them: clean, with what a plain program has for a config.json, and one whose optimizer decays every tensor
and which has stored no weights.
"""

import json
import math
import os
import shutil
import sys

import torch
from torch import nn

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "..", "tools"))
from torch_dump import TorchDump  # noqa: E402

VOCAB, HIDDEN, HEADS, GROUPS, FFN, SEQ, ROWS = 16, 8, 2, 1, 12, 6, 2


class RmsNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN) + 0.1 * torch.randn(HIDDEN))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


def attend(q, k, v):
    """q, k, v [B, n, S, D]; causal. [B, S, n * D]."""
    scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
    hidden = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
    out = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
    return out.transpose(1, 2).reshape(q.shape[0], q.shape[2], -1)


def heads(x, count):
    return x.view(x.shape[0], x.shape[1], count, -1).transpose(1, 2)


def rotated(x):
    """Rotary embedding of halves, base 10000."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[2])[:, None] / 10000 ** (torch.arange(half) / half)
    cos, sin = torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


class LlamaAttention(nn.Module):
    def __init__(self):
        super().__init__()
        size = HIDDEN // HEADS
        self.q_proj = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.k_proj = nn.Linear(HIDDEN, GROUPS * size, bias=False)
        self.v_proj = nn.Linear(HIDDEN, GROUPS * size, bias=False)
        self.o_proj = nn.Linear(HIDDEN, HIDDEN, bias=False)

    def forward(self, x):
        q, k, v = heads(self.q_proj(x), HEADS), heads(self.k_proj(x), GROUPS), heads(self.v_proj(x), GROUPS)
        q, k = rotated(q), rotated(k)
        k, v = (t.repeat_interleave(HEADS // GROUPS, 1) for t in (k, v))
        return self.o_proj(attend(q, k, v))


class LlamaMlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj = nn.Linear(HIDDEN, FFN, bias=False)
        self.up_proj = nn.Linear(HIDDEN, FFN, bias=False)
        self.down_proj = nn.Linear(FFN, HIDDEN, bias=False)

    def forward(self, x):
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn = LlamaAttention()
        self.mlp = LlamaMlp()
        self.input_layernorm = RmsNorm()
        self.post_attention_layernorm = RmsNorm()

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class LlamaModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList([LlamaLayer()])
        self.norm = RmsNorm()

    def forward(self, tokens):
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = LlamaModel()
        self.lm_head = nn.Linear(HIDDEN, VOCAB, bias=False)

    def forward(self, tokens):
        return self.lm_head(self.model(tokens))


class Conv1D(nn.Module):
    """GPT-2's linear layer: the weight is [in, out]."""

    def __init__(self, out, into):
        super().__init__()
        self.weight = nn.Parameter(0.3 * torch.randn(into, out))
        self.bias = nn.Parameter(0.1 * torch.randn(out))

    def forward(self, x):
        return x @ self.weight + self.bias


class Gpt2Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn = Conv1D(3 * HIDDEN, HIDDEN)
        self.c_proj = Conv1D(HIDDEN, HIDDEN)

    def forward(self, x):
        return self.c_proj(attend(*(heads(t, HEADS) for t in self.c_attn(x).split(HIDDEN, 2))))


class Gpt2Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_fc = Conv1D(FFN, HIDDEN)
        self.c_proj = Conv1D(HIDDEN, FFN)

    def forward(self, x):
        return self.c_proj(nn.functional.gelu(self.c_fc(x), approximate="tanh"))


class Gpt2Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1 = nn.LayerNorm(HIDDEN)
        self.attn = Gpt2Attention()
        self.ln_2 = nn.LayerNorm(HIDDEN)
        self.mlp = Gpt2Mlp()

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt2Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(VOCAB, HIDDEN)
        self.wpe = nn.Embedding(SEQ, HIDDEN)
        self.drop = nn.Dropout(0.0)
        self.h = nn.ModuleList([Gpt2Block()])
        self.ln_f = nn.LayerNorm(HIDDEN)

    def forward(self, tokens):
        x = self.drop(self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1])))
        for block in self.h:
            x = block(x)
        return self.ln_f(x)


class Gpt2(nn.Module):
    def __init__(self):
        super().__init__()
        self.transformer = Gpt2Model()
        self.lm_head = nn.Linear(HIDDEN, VOCAB, bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    def forward(self, tokens):
        return self.lm_head(self.transformer(tokens))


def train(name, model, micro_batches, folder):
    """One AdamW step on made-up tokens, dumped."""
    folder = os.path.join(folder, name)
    for part in ("case", "dump"):
        shutil.rmtree(os.path.join(folder, part), ignore_errors=True)
    os.makedirs(folder, exist_ok=True)
    config = os.path.join(folder, "dump.json")
    with open(config, "w", encoding="utf-8") as file:
        json.dump({"common_dump_settings": {"path": os.path.join(folder, "dump"), "saved_data": "full",
                                            "input_output": 2, "statistic_category":
                                            ["max", "min", "l2norm", "bits", "md5"]}}, file)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95))
    dump = TorchDump(model, config, case=os.path.join(folder, "case"))
    rows = torch.randint(VOCAB, (ROWS, SEQ + 1))
    with dump.step() as step:
        total = 0.0
        for row in rows.split(ROWS // micro_batches):
            tokens, labels = row[:, :-1], row[:, 1:]
            step.micro_batch(tokens, labels, torch.ones(tokens.shape))
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())
            (loss / micro_batches).backward()
            total += loss.item() / micro_batches
        step.gradients()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1e9)
        optimizer.step()
        step.result(loss=total, grad_norm=norm, lr=1e-2)
    dump.close()
    os.remove(config)  # has the path of this machine, and so has its copy
    shutil.rmtree(os.path.join(folder, "dump", "rank_0", ".dump_metadata"))


def train_three_steps(name, folder, decays_all):
    """AdamW with clipping and a warm-up; the case alone is kept."""
    torch.manual_seed(5)
    model = Llama()
    folder = os.path.join(folder, "three_steps", name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    config = os.path.join(folder, "dump.json")
    with open(config, "w", encoding="utf-8") as file:
        json.dump({"common_dump_settings": {"path": os.path.join(folder, "dump"), "saved_data": "statistic"}},
                  file)
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.dim() < 2],
               "weight_decay": 0.1 if decays_all else 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95))
    dump = TorchDump(model, config, case=folder)
    for i in range(3):
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * min(1.0, (i + 1) / 2)
        rows = torch.randint(VOCAB, (2 * ROWS, SEQ + 1))
        with dump.step() as step:
            total = 0.0
            for row in rows.split(ROWS):
                tokens, labels = row[:, :-1], row[:, 1:]
                step.micro_batch(tokens, labels, torch.ones(tokens.shape))
                loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())
                (loss / 2).backward()
                total += loss.item() / 2
            step.gradients()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step.result(loss=total, grad_norm=norm, lr=optimizer.param_groups[0]["lr"])
            optimizer.zero_grad()
    dump.close()
    os.remove(config)
    shutil.rmtree(os.path.join(folder, "dump"))
    if decays_all:
        for file in os.listdir(folder):
            if file.startswith("weights_") or file in ("grads_step_2.safetensors", "grads_step_3.safetensors"):
                os.remove(os.path.join(folder, file))
    else:
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump({"vocab": VOCAB, "hidden": HIDDEN, "heads": HEADS}, file)


if __name__ == "__main__":
    torch.manual_seed(3)
    torch.set_num_threads(1)
    target = sys.argv[1] if len(sys.argv) > 1 else HERE
    train("llama", Llama(), 1, target)
    train("gpt2", Gpt2(), 2, target)
    train_three_steps("clean", target, decays_all=False)
    train_three_steps("decays_all", target, decays_all=True)
