#!/usr/bin/env python3
"""Times training steps of low-rank adapters in PyTorch on the CPU: the peer of step_bench --lora.

Every matrix of attention and MLP is a frozen linear layer with an adapter as PEFT makes it: y = W x
+ b + s B (A x), A and B float32 whatever the base's dtype (PEFT's autocast_adapter_dtype), x
converted to theirs and the sum back. With --dtype bfloat16 the base is bfloat16, and PyTorch's
autocast multiplies adapters in bfloat16, as a trainer with bf16 does. --adapters same gives them the
base's dtype.

A step is forward, backward, clipping to norm 1, AdamW, and dropping the gradients. Models, options
and printed fields are those of step_bench. Runs with Debian's python3-torch (1.13) and newer.

    OMP_NUM_THREADS=2 /usr/bin/python3 torch_lora.py --preset qwen2_390m --dtype bfloat16 --lora 16
"""
import argparse
import json
import math
import os
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from torch_about import about, keep_memory
from torch_steps import timed_steps


@dataclass(frozen=True)
class Shape:
    """RMSNorm, rotary positions, SwiGLU, biases of queries, keys and values, tied output."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    vocab: int

    @property
    def head_size(self):
        return self.hidden // self.heads


PRESETS = {
    "qwen2_390m": Shape(24, 896, 4864, 14, 2, 32000),
    "small": Shape(2, 64, 128, 4, 2, 512),
}

HAS_FUSED_ATTENTION = hasattr(F, "scaled_dot_product_attention")


class LoraLinear(nn.Module):
    """A frozen matrix with PEFT's addition; B starts other than zero, so that all of it counts."""

    def __init__(self, inputs, outputs, bias, options):
        super().__init__()
        self.base = nn.Linear(inputs, outputs, bias=bias)
        self.a = nn.Linear(inputs, options.lora, bias=False)
        self.b = nn.Linear(options.lora, outputs, bias=False)
        self.scaling = 2.0
        nn.init.kaiming_uniform_(self.a.weight, a=math.sqrt(5))
        nn.init.normal_(self.b.weight, std=1e-3)

    def forward(self, x):
        y = self.base(x)
        return y + (self.b(self.a(x.to(self.a.weight.dtype))) * self.scaling).to(y.dtype)


class RmsNorm(nn.Module):
    def __init__(self, size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        return self.weight * (wide * scale).to(x.dtype)


class Positions(nn.Module):
    """Rotary tables and the causal mask for sequences of one length."""

    def __init__(self, shape, seq):
        super().__init__()
        half = torch.arange(0, shape.head_size, 2, dtype=torch.float32)
        angles = torch.arange(seq).float()[:, None] * 10000 ** (-half / shape.head_size)
        self.register_buffer("cos", torch.cos(angles))
        self.register_buffer("sin", torch.sin(angles))
        self.register_buffer("hidden", torch.ones(seq, seq).triu(1).bool())

    def rotate(self, x):
        low, high = x.chunk(2, dim=-1)
        turned = (low * self.cos - high * self.sin, high * self.cos + low * self.sin)
        return torch.cat(turned, dim=-1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, shape, options):
        super().__init__()
        self.shape = shape
        keys = shape.kv_heads * shape.head_size
        self.q = LoraLinear(shape.hidden, shape.hidden, True, options)
        self.k = LoraLinear(shape.hidden, keys, True, options)
        self.v = LoraLinear(shape.hidden, keys, True, options)
        self.out = LoraLinear(shape.hidden, shape.hidden, False, options)

    def forward(self, x, positions):
        batch, seq, hidden = x.shape
        parts = (self.q(x), self.k(x), self.v(x))
        q, k, v = (p.view(batch, seq, -1, self.shape.head_size).transpose(1, 2) for p in parts)
        q, k = positions.rotate(q), positions.rotate(k)
        group = self.shape.heads // self.shape.kv_heads
        if group > 1:
            k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        if HAS_FUSED_ATTENTION:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(2, 3) * self.shape.head_size**-0.5
            mixed = scores.masked_fill(positions.hidden, -torch.inf).softmax(dim=-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, seq, hidden))


class Mlp(nn.Module):
    def __init__(self, shape, options):
        super().__init__()
        self.gate = LoraLinear(shape.hidden, shape.ffn, False, options)
        self.up = LoraLinear(shape.hidden, shape.ffn, False, options)
        self.down = LoraLinear(shape.ffn, shape.hidden, False, options)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, shape, options):
        super().__init__()
        self.attention_norm, self.attention = RmsNorm(shape.hidden), Attention(shape, options)
        self.mlp_norm, self.mlp = RmsNorm(shape.hidden), Mlp(shape, options)

    def forward(self, x, positions):
        x = x + self.attention(self.attention_norm(x), positions)
        return x + self.mlp(self.mlp_norm(x))


class Gpt(nn.Module):
    def __init__(self, shape, options):
        super().__init__()
        self.tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.positions = Positions(shape, options.seq)
        self.blocks = nn.ModuleList([Block(shape, options) for _ in range(shape.layers)])
        self.norm = RmsNorm(shape.hidden)

    def forward(self, ids, labels):
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x, self.positions)
        logits = F.linear(self.norm(x), self.tokens.weight).float()
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def make_model(shape, options):
    model = Gpt(shape, options)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            adapts = name.endswith((".a.weight", ".b.weight"))
            if parameter.dim() == 2 and not adapts:
                parameter.normal_(std=0.02)
            parameter.requires_grad_(adapts)
            if options.dtype == "bfloat16" and (not adapts or options.adapters == "same"):
                parameter.data = parameter.data.bfloat16()
    return model


def train_step(model, optimizer, trained, ids, labels, options):
    mixed = options.dtype == "bfloat16" and options.adapters == "float32"
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
        loss = model(ids, labels)
    loss.backward()
    nn.utils.clip_grad_norm_(trained, 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def step_flops(shape, options, parameters, trained):
    """Four per frozen weight of a product and token, six per adapter's, and attention."""
    per_token = 4 * (parameters - trained) + 6 * trained
    per_token += 6 * shape.layers * shape.hidden * options.seq
    return options.batch * options.seq * per_token


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--preset", choices=PRESETS, default="qwen2_390m")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--lora", type=int, default=16, help="rank")
    parser.add_argument("--adapters", choices=["float32", "same"], default="float32")
    for name, default in (("batch", 4), ("seq", 256), ("steps", 5), ("warmup", 2)):
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--compile", action="store_true", help="the model through torch.compile")
    parser.add_argument("--keep-memory", action="store_true", help="malloc keeps what it has")
    threads = int(os.environ.get("OMP_NUM_THREADS", os.cpu_count()))
    parser.add_argument("--threads", type=int, default=threads)
    return parser.parse_args()


def main():
    options = parse_arguments()
    if options.keep_memory:
        keep_memory()
    torch.set_num_threads(options.threads)
    torch.manual_seed(42)
    shape = PRESETS[options.preset]
    model = make_model(shape, options)
    trained = [p for p in model.parameters() if p.requires_grad]
    count = sum(p.numel() for p in model.parameters())
    optimizer = torch.optim.AdamW(trained, lr=3e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    if options.compile:
        model = torch.compile(model)
    ids, labels = torch.randint(shape.vocab, (2, options.batch, options.seq)).unbind(0)

    flops = step_flops(shape, options, count, sum(p.numel() for p in trained))
    result = {
        "peer": "torch " + torch.__version__ + (" compiled" if options.compile else ""),
        **about(torch, options.compile),
        "preset": options.preset,
        "dtype": options.dtype,
        "lora": options.lora,
        "adapters": options.adapters,
        "threads": options.threads,
        "batch": options.batch,
        "seq": options.seq,
        "params": count,
        **timed_steps(lambda: train_step(model, optimizer, trained, ids, labels, options), options, flops),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
