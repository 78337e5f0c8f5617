#!/usr/bin/env python3
"""Times one mixture of experts in PyTorch on the CPU, forward and backward: the peer of moe_bench.

The layer is written as it usually is without kernels of its own: softmax over the chosen logits, then
for each expert its tokens are gathered, go through a SwiGLU, and are added to the result with their
gates. `dense` is the SwiGLU layer that has as many multiply-adds per token. One JSON line per case: op,
shape, dtype and the median in microseconds.

    OMP_NUM_THREADS=2 /usr/bin/python3 torch_moe.py [--tokens 2048] [--repeats 15]
"""
import argparse
import json
import os
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F


class SwiGLU(nn.Module):
    def __init__(self, hidden, ffn):
        super().__init__()
        self.gate_up = nn.Linear(hidden, 2 * ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(F.silu(gate) * up)


class Mixture(nn.Module):
    def __init__(self, hidden, ffn, experts, topk):
        super().__init__()
        self.topk = topk
        self.router = nn.Linear(hidden, experts, bias=False, dtype=torch.float32)
        self.experts = nn.ModuleList(SwiGLU(hidden, ffn) for _ in range(experts))

    def forward(self, x):
        logits = self.router(x.float())
        chosen, indices = logits.topk(self.topk, -1)
        gates = chosen.softmax(-1)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            tokens, choice = torch.where(indices == e)
            if tokens.numel() > 0:
                y = expert(x[tokens]) * gates[tokens, choice].to(x.dtype)[:, None]
                out = out.index_add(0, tokens, y)
        return out


def microseconds(module, x, dy, repeats):
    operands = [x, *module.parameters()]
    times = []
    for i in range(repeats + 2):
        start = time.perf_counter()
        torch.autograd.grad(module(x), operands, dy, allow_unused=True)
        if i >= 2:
            times.append(1e6 * (time.perf_counter() - start))
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in [("tokens", 2048), ("hidden", 768), ("ffn", 1536), ("experts", 8), ("topk", 2),
                        ("repeats", 15)]:
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    torch.manual_seed(1)
    threads = int(os.environ.get("OMP_NUM_THREADS", "0"))
    if threads:
        torch.set_num_threads(threads)
    shape = f"{args.tokens}x{args.hidden}"
    for dtype in (torch.float32, torch.bfloat16):
        cases = {
            f"moe_layer/{shape}/E{args.experts}k{args.topk}F{args.ffn}":
                Mixture(args.hidden, args.ffn, args.experts, args.topk),
            f"dense_layer/{shape}/F{args.topk * args.ffn}": SwiGLU(args.hidden, args.topk * args.ffn),
        }
        for case, module in cases.items():
            for name, child in module.named_modules():
                if isinstance(child, nn.Linear) and name != "router":
                    child.to(dtype)
            x = torch.randn(args.tokens, args.hidden).to(dtype).requires_grad_()
            dy = torch.randn(args.tokens, args.hidden).to(dtype)
            op, *rest = case.split("/")
            print(json.dumps({"op": op, "shape": "/".join(rest), "dtype": str(dtype).split(".")[1],
                              "torch": torch.__version__, "threads": torch.get_num_threads(),
                              "us": microseconds(module, x, dy, args.repeats)}), flush=True)


if __name__ == "__main__":
    main()
