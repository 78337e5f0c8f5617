#!/usr/bin/env python3
"""Times whole GPT training steps in PyTorch on the CPU: the peer of step_bench.

A step is forward, backward, clipping to norm 1, AdamW, and dropping the gradients. Models, options
and printed fields are those of step_bench. Runs with Debian's python3-torch (1.13) and newer, pip's too.

    OMP_NUM_THREADS=2 python3 torch_gpt.py --preset gpt2_124m --dtype bfloat16 --compile --keep-memory
"""
import argparse
import json
import os
from dataclasses import dataclass

import torch
import torch_about
from torch import nn
from torch.nn import functional as F
from torch_steps import timed_steps


@dataclass(frozen=True)
class Shape:
    """llama: RMSNorm, rotary positions, SwiGLU, no biases, an output matrix of its own.
    Otherwise as GPT-2: LayerNorm, learned positions, GELU, biases, tied output."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    vocab: int
    llama: bool

    @property
    def head_size(self):
        return self.hidden // self.heads


PRESETS = {
    "char": Shape(4, 128, 512, 4, 4, 65, False),
    "tiny": Shape(4, 256, 1024, 4, 4, 512, False),
    "llama_15m": Shape(6, 288, 768, 6, 6, 32000, True),
    "gpt2_124m": Shape(12, 768, 3072, 12, 12, 50304, False),
    "llama_110m": Shape(12, 768, 2048, 12, 12, 32000, True),
    "llama_gqa": Shape(8, 1024, 2816, 16, 4, 32000, True),
    "layer_7b": Shape(1, 4096, 11008, 32, 32, 32000, True),
}

HAS_FUSED_ATTENTION = hasattr(F, "scaled_dot_product_attention")


class RmsNorm(nn.Module):
    def __init__(self, size, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        return (wide * scale * self.weight).to(x.dtype)


def make_norm(shape):
    return RmsNorm(shape.hidden) if shape.llama else nn.LayerNorm(shape.hidden)


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
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.widths = [n * shape.head_size for n in (shape.heads, shape.kv_heads, shape.kv_heads)]
        self.qkv = nn.Linear(shape.hidden, sum(self.widths), bias=not shape.llama)
        self.out = nn.Linear(shape.hidden, shape.hidden, bias=not shape.llama)

    def forward(self, x, positions):
        batch, seq, hidden = x.shape
        parts = self.qkv(x).split(self.widths, dim=-1)
        q, k, v = (p.view(batch, seq, -1, self.shape.head_size).transpose(1, 2) for p in parts)
        if self.shape.llama:
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
    def __init__(self, shape):
        super().__init__()
        self.gated = shape.llama
        width = 2 * shape.ffn if self.gated else shape.ffn
        self.up = nn.Linear(shape.hidden, width, bias=not shape.llama)
        self.down = nn.Linear(shape.ffn, shape.hidden, bias=not shape.llama)

    def forward(self, x):
        y = self.up(x)
        if self.gated:
            gate, value = y.chunk(2, dim=-1)
            return self.down(F.silu(gate) * value)
        return self.down(F.gelu(y))


class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.attention_norm, self.attention = make_norm(shape), Attention(shape)
        self.mlp_norm, self.mlp = make_norm(shape), Mlp(shape)

    def forward(self, x, positions):
        x = x + self.attention(self.attention_norm(x), positions)
        return x + self.mlp(self.mlp_norm(x))


class Gpt(nn.Module):
    def __init__(self, shape, seq):
        super().__init__()
        self.tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.learned = None if shape.llama else nn.Embedding(seq, shape.hidden)
        self.positions = Positions(shape, seq)
        self.blocks = nn.ModuleList([Block(shape) for _ in range(shape.layers)])
        self.norm = make_norm(shape)
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False)
        if not shape.llama:
            self.head.weight = self.tokens.weight
        with torch.no_grad():
            for weight in self.parameters():
                if weight.dim() == 2:
                    weight.normal_(std=0.02)

    def forward(self, ids, labels):
        x = self.tokens(ids)
        if self.learned is not None:
            x = x + self.learned.weight
        for block in self.blocks:
            x = block(x, self.positions)
        logits = self.head(self.norm(x)).float()
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def make_optimizer(model):
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [
        {"params": matrices, "weight_decay": 0.1},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), eps=1e-8)


def train_step(model, optimizer, ids, labels, dtype):
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bfloat16"):
        loss = model(ids, labels)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def step_flops(shape, batch, seq, parameters):
    """Six per weight of a matrix product and token, and attention over the visible half."""
    looked_up = (shape.vocab if shape.llama else seq) * shape.hidden
    per_token = 6 * (parameters - looked_up) + 6 * shape.layers * shape.hidden * seq
    return batch * seq * per_token


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--preset", choices=PRESETS, default="gpt2_124m")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    for name, default in (("batch", 4), ("seq", 256), ("steps", 5), ("warmup", 2)):
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--compile", action="store_true", help="the model through torch.compile")
    parser.add_argument("--keep-memory", action="store_true", help="malloc gives nothing back")
    threads = int(os.environ.get("OMP_NUM_THREADS", os.cpu_count()))
    parser.add_argument("--threads", type=int, default=threads)
    return parser.parse_args()


def main():
    args = parse_arguments()
    if args.keep_memory:
        torch_about.keep_memory()
    torch.set_num_threads(args.threads)
    torch.manual_seed(42)
    shape = PRESETS[args.preset]
    model = Gpt(shape, args.seq)
    optimizer = make_optimizer(model)
    if args.compile:
        model = torch.compile(model)
    ids, labels = torch.randint(shape.vocab, (2, args.batch, args.seq)).unbind(0)

    parameters = sum(p.numel() for p in model.parameters())
    flops = step_flops(shape, args.batch, args.seq, parameters)
    result = {
        "peer": "torch " + torch.__version__ + (" compiled" if args.compile else ""),
        "preset": args.preset,
        "dtype": args.dtype,
        "threads": args.threads,
        "batch": args.batch,
        "seq": args.seq,
        "params": parameters,
        **timed_steps(lambda: train_step(model, optimizer, ids, labels, args.dtype), args, flops),
        **torch_about.about(torch, args.compile),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
