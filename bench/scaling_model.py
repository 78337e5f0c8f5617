#!/usr/bin/env python3
"""Predicts the step time of a model on many ranks from figures measured on few; docs/scaling.md.

Everything is in seconds, bytes and operations. The formulas are those of docs/scaling.md, the bytes
those that the tests count (CommunicationStats). For each number of ranks the fastest layout that fits
the memory is printed.
"""
import argparse
import dataclasses
import itertools


@dataclasses.dataclass
class Machine:
    """What one rank has."""

    flops: float  # of matrix products, per second
    efficiency: float  # a step's share of that
    memory_bandwidth: float  # bytes per second, for the optimizer
    memory: float  # bytes
    bandwidth: float  # of messages, bytes per second, each way
    latency: float  # of a message


@dataclasses.dataclass
class Model:
    layers: int
    hidden: int
    ffn: int
    vocabulary: int
    kv: int  # width of the keys
    gated: bool
    tied: bool
    seq: int
    batch: int  # sequences of a step
    element: int  # bytes of an activation
    state: float  # bytes of a parameter with gradient and optimizer

    def layer_parameters(self):
        up = self.ffn * (2 if self.gated else 1)
        return self.hidden * (2 * self.hidden + 2 * self.kv + up + self.ffn)

    def parameters(self):
        tables = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return self.layers * self.layer_parameters() + tables

    def operations(self):
        """Of a step: six per parameter and token, attention over the visible half."""
        matrices = self.layers * self.layer_parameters() + self.vocabulary * self.hidden
        attention = self.layers * self.hidden * self.seq
        return self.batch * self.seq * 6 * (matrices + attention)


@dataclasses.dataclass
class Layout:
    tp: int
    pp: int
    dp: int
    micro: int  # micro-batches of a rank


def step_time(model, machine, layout):
    """(seconds, of which computing, tensor parallel, bubble, data parallel, update); None: no room."""
    tp, pp, dp, m = layout.tp, layout.pp, layout.dp, layout.micro
    sequences = model.batch / dp / m
    if sequences < 1 or model.layers % pp or model.hidden % (64 * tp):
        return None
    share = model.parameters() / (tp * pp)
    hidden_bytes = sequences * model.seq * model.hidden * model.element
    per_layer = hidden_bytes / tp * (4 + 4 + 3 * model.ffn / model.hidden)
    in_flight = min(pp, m)
    # z1: weight, its copy and the gradient whole, the rest divided by dp.
    kept = share * (8 + (model.state - 8) / dp)
    if kept + per_layer * model.layers / pp * in_flight > machine.memory:
        return None
    compute = model.operations() / (tp * pp * dp) / (machine.flops * machine.efficiency)

    def ring(pieces, size):  # all-gather or reduce-scatter of `size` bytes over `pieces` ranks
        return (pieces - 1) / pieces * size / machine.bandwidth + (pieces - 1) * machine.latency

    # Each layer of each micro-batch: two all-reduces forward and two backward, each a
    # reduce-scatter and an all-gather; with sequence parallelism the same bytes.
    tensor = model.layers / pp * m * 4 * 2 * ring(tp, hidden_bytes) if tp > 1 else 0
    bubble = (pp - 1) / m * (compute + tensor)
    messages = 2 * m * (hidden_bytes / machine.bandwidth + machine.latency) if pp > 1 else 0
    bubble += messages / m * (pp - 1)  # the rest is under way while others compute
    data = 0
    if dp > 1:
        wire = ring(dp, share * 4) + ring(dp, share * model.element)
        # Hidden behind the last micro-batch's backward pass, two thirds of its time.
        data = max(0.0, wire - 2 / 3 * compute / m)
    update = share / dp * 28 / machine.memory_bandwidth
    return (compute + tensor + bubble + data + update, compute, tensor, bubble, data, update)


def best(model, machine, ranks):
    found = None
    for tp, pp in itertools.product((1, 2, 4, 8), (1, 2, 4, 8, 16, 32)):
        if ranks % (tp * pp):
            continue
        dp = ranks // (tp * pp)
        for m in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024):
            layout = Layout(tp, pp, dp, m)
            times = step_time(model, machine, layout)
            if times and (found is None or times[0] < found[0][0]):
                found = (times, layout)
    return found


MODELS = {
    "124M, float32": Model(12, 768, 3072, 50304, 768, False, True, 1024, 1024, 4, 16),
    "7B (32 layers), bfloat16": Model(32, 4096, 11008, 32000, 4096, True, False, 4096, 1024, 2, 16),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--float32", type=float, default=487e9, help="operations/s of a rank")
    parser.add_argument("--bfloat16", type=float, default=985e9)
    parser.add_argument("--efficiency", type=float, default=0.8)
    parser.add_argument("--memory-bandwidth", type=float, default=68e9)
    parser.add_argument("--memory", type=float, default=24 * 2**30)
    parser.add_argument("--bandwidth", type=float, default=12.5e9, help="of the network, bytes/s")
    parser.add_argument("--latency", type=float, default=5e-6)
    options = parser.parse_args()
    for name, model in MODELS.items():
        flops = options.float32 if model.element == 4 else options.bfloat16
        machine = Machine(
            flops,
            options.efficiency,
            options.memory_bandwidth,
            options.memory,
            options.bandwidth,
            options.latency,
        )
        print(f"### {name}: {model.parameters():,} parameters, {model.batch} sequences of {model.seq}\n")
        print("| ranks | layout | micro-batches | s a step | tokens/s | computing | tp | bubble | dp | update |")
        print("|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|")
        for ranks in (1, 8, 16, 32, 64, 128, 256, 512, 1024):
            found = best(model, machine, ranks)
            if found is None:
                print(f"| {ranks} | does not fit | | | | | | | | |")
                continue
            (total, *parts), layout = found
            shares = " | ".join(f"{part / total:.0%}" for part in parts)
            tokens = model.batch * model.seq / total
            print(
                f"| {ranks} | tp {layout.tp}, pp {layout.pp}, dp {layout.dp} | {layout.micro} "
                f"| {total:,.2f} | {tokens:,.0f} | {shares} |"
            )
        print()


if __name__ == "__main__":
    main()
