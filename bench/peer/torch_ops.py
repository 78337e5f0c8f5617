#!/usr/bin/env python3
"""Times the ops of a GPT step in PyTorch on the CPU, forward and backward: the peer of ops_bench.

One JSON line per case: op, shape, dtype and the median in microseconds. Cases are named as in
ops_bench; each builds its operands, does its work twice unmeasured, then `--repeats` times.

    OMP_NUM_THREADS=2 /usr/bin/python3 torch_ops.py [--only TEXT] [--repeats N] [--keep-memory]
"""
import argparse
import json
import os
import statistics
import time

import torch
import torch_about
from torch.nn import functional as F


def values(*shape, dtype=torch.float32, requires_grad=True):
    return torch.randn(*shape).mul_(0.5).to(dtype).requires_grad_(requires_grad)


def gradient(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype)


# Each of the following returns the function to time.


def tape_1000_adds(_):
    def work():
        x = torch.ones(8, requires_grad=True)
        y = x
        for _ in range(1000):
            y = y + x
        y.sum().backward()

    return work


def eager_1000_adds_no_grad(_):
    @torch.no_grad()
    def work():
        x = torch.ones(8)
        y = x
        for _ in range(1000):
            y = y + x

    return work


def linear(dtype):
    x, weight = values(1024, 768, dtype=dtype), values(3072, 768, dtype=dtype)
    dy = gradient(1024, 3072, dtype=dtype)
    return lambda: torch.autograd.grad(F.linear(x, weight), [x, weight], dy)


def gelu(dtype):
    x, dy = values(1024, 3072, dtype=dtype), gradient(1024, 3072, dtype=dtype)
    return lambda: torch.autograd.grad(F.gelu(x), [x], dy)


def swiglu(dtype):
    gate, up = values(1024, 3072, dtype=dtype), values(1024, 3072, dtype=dtype)
    dy = gradient(1024, 3072, dtype=dtype)
    return lambda: torch.autograd.grad(F.silu(gate) * up, [gate, up], dy)


def layer_norm(dtype):
    x, dy = values(4096, 768, dtype=dtype), gradient(4096, 768, dtype=dtype)
    weight, bias = values(768, dtype=dtype), values(768, dtype=dtype)
    inputs = [x, weight, bias]
    return lambda: torch.autograd.grad(F.layer_norm(x, [768], weight, bias), inputs, dy)


def rms_norm(dtype):
    x, dy = values(4096, 768, dtype=dtype), gradient(4096, 768, dtype=dtype)
    weight = values(768, dtype=dtype)

    def work():
        rstd = torch.rsqrt(x.float().square().mean(dim=-1, keepdim=True) + 1e-5).to(dtype)
        torch.autograd.grad(x * rstd * weight, [x, weight], dy)

    return work


def add_layer_norm(dtype):
    x, residual = values(4096, 768, dtype=dtype), values(4096, 768, dtype=dtype)
    weight, bias = values(768, dtype=dtype), values(768, dtype=dtype)
    dys = [gradient(4096, 768, dtype=dtype), gradient(4096, 768, dtype=dtype)]

    def work():
        total = residual + x
        normed = F.layer_norm(total, [768], weight, bias)
        torch.autograd.grad([total, normed], [x, residual, weight, bias], dys)

    return work


def bias_gelu(dtype):
    x, bias = values(1024, 3072, dtype=dtype), values(3072, dtype=dtype)
    dy = gradient(1024, 3072, dtype=dtype)
    return lambda: torch.autograd.grad(F.gelu(x + bias), [x, bias], dy)


def dropout(dtype):
    x, dy = values(1024, 3072, dtype=dtype), gradient(1024, 3072, dtype=dtype)
    return lambda: torch.autograd.grad(F.dropout(x, 0.1), [x], dy)


def attention(q, k, v, hidden):
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    scores = (q @ k.transpose(2, 3)) * q.shape[-1] ** -0.5
    return scores.masked_fill(hidden, -torch.inf).softmax(dim=-1) @ v


def causal_attention(dtype):
    shape = (4, 12, 1024, 64)
    q, k, v = (values(*shape, dtype=dtype) for _ in range(3))
    dy = gradient(*shape, dtype=dtype)
    hidden = torch.ones(1024, 1024).triu(1).bool()
    return lambda: torch.autograd.grad(attention(q, k, v, hidden), [q, k, v], dy)


def qkv_attention(batch, length):
    """As a layer has it: query, key and value are slices of one projection."""

    def prepare(dtype):
        fused = values(batch, length, 12, 3, 64, dtype=dtype).detach()
        q, k, v = (fused[:, :, :, i].transpose(1, 2).requires_grad_() for i in range(3))
        dy = gradient(batch, length, 12, 64, dtype=dtype).transpose(1, 2)
        hidden = torch.ones(length, length).triu(1).bool()
        return lambda: torch.autograd.grad(attention(q, k, v, hidden), [q, k, v], dy)

    prepare.__name__ = "qkv_attention"
    return prepare


def cross_entropy(dtype):
    logits = values(1024, 50304, dtype=dtype)
    labels = torch.randint(50304, (1024,))
    return lambda: torch.autograd.grad(F.cross_entropy(logits.float(), labels), [logits])


def embedding(dtype):
    weight = values(50304, 768, dtype=dtype)
    ids, dy = torch.randint(50304, (4, 1024)), gradient(4, 1024, 768, dtype=dtype)
    return lambda: torch.autograd.grad(F.embedding(ids, weight), [weight], dy)


def adamw(_):
    parameters = [torch.randn(768, 3072).requires_grad_() for _ in range(24)]
    for parameter in parameters:
        parameter.grad = torch.randn(768, 3072)
    return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.1).step


def clip_grad_norm(_):
    parameters = [torch.empty(768, 3072, requires_grad=True) for _ in range(24)]
    for parameter in parameters:
        parameter.grad = torch.randn(768, 3072)
    limit = 1.0

    def work():
        # The limit follows just below the norm, so that every call both measures and scales.
        nonlocal limit
        norm = torch.nn.utils.clip_grad_norm_(parameters, limit).item()
        limit = 0.999 * min(limit, norm)

    return work


BOTH = ("float32", "bfloat16")
CASES = [
    (tape_1000_adds, "8", ("float32",)),
    (eager_1000_adds_no_grad, "8", ("float32",)),
    (linear, "1024x768x3072", BOTH),
    (gelu, "1024x3072", BOTH),
    (swiglu, "1024x3072", BOTH),
    (layer_norm, "4096x768", BOTH),
    (rms_norm, "4096x768", BOTH),
    (add_layer_norm, "4096x768", BOTH),
    (bias_gelu, "1024x3072", BOTH),
    (dropout, "1024x3072", BOTH),
    (causal_attention, "4x12x1024x64", BOTH),
    (qkv_attention(4, 256), "4x256x12x64", BOTH),
    (qkv_attention(1, 1024), "1x1024x12x64", BOTH),
    (cross_entropy, "1024x50304", BOTH),
    (embedding, "50304x768[4096]", ("float32",)),
    (adamw, "24x768x3072", ("float32",)),
    (clip_grad_norm, "24x768x3072", ("float32",)),
]


def median_us(work, repeats):
    for _ in range(2):
        work()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return round(statistics.median(seconds) * 1e6, 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--only", default="", help="cases whose op/shape/dtype contains this")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--keep-memory", action="store_true", help="malloc gives nothing back")
    args = parser.parse_args()
    if args.keep_memory:
        torch_about.keep_memory()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count())))
    torch.manual_seed(0)
    for prepare, shape, dtypes in CASES:
        for dtype in dtypes:
            case = {"op": prepare.__name__, "shape": shape, "dtype": dtype}
            if args.only in "/".join(case.values()):
                case["us"] = median_us(prepare(getattr(torch, dtype)), args.repeats)
                print(json.dumps(case), flush=True)


if __name__ == "__main__":
    main()
