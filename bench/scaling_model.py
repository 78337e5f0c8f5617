#!/usr/bin/env python3
"""Predicts the step time of a model on many ranks from figures measured on few; docs/scaling.md.

Everything is in seconds, bytes and operations. The formulas are those of docs/scaling.md, the bytes
those that the tests count (CommunicationStats), the messages those of parallel_core/comm/schedule.h. For
each number of ranks the fastest layout that fits the memory is printed.
"""
import argparse
import dataclasses
import itertools

MOST_DIRECT = 8  # ranks that all send to each other, as in schedule.h
WINDOW = 4
SMALLEST_SEGMENT = 64 * 2**10
LARGEST_SEGMENT = 512 * 2**10
ALIGNMENT = 64  # elements
BUCKET = 40_000_000  # elements; or 1,000,000 a data-parallel rank


def aligned(elements):
    return -(-elements // ALIGNMENT) * ALIGNMENT


def chain_segment(ranks, elements, size):
    """Elements of a segment of a tensor that is reduced along a chain."""
    wanted = elements * size // (4 * ranks)
    return aligned(min(max(wanted, SMALLEST_SEGMENT), LARGEST_SEGMENT) // size)


def all_reduce_messages(ranks, elements, size=4):
    """(messages that a rank sends at most, that are under way at most) in an all-reduce."""
    if ranks <= MOST_DIRECT:
        piece = aligned(-(-elements // ranks))
        segment = max(LARGEST_SEGMENT // max(1, ranks // 4), SMALLEST_SEGMENT) // size
        return 2 * (ranks - 1) * -(-piece // segment), 2 * WINDOW * (ranks - 1)
    return 2 * -(-elements // chain_segment(ranks, elements, size)), 2 * WINDOW


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

    def direct(ranks, size):  # an all-gather or a reduce-scatter of few ranks
        return (ranks - 1) / ranks * size / machine.bandwidth + machine.latency

    def reduce_scatter(ranks, size, element):
        if ranks <= MOST_DIRECT:
            return direct(ranks, size)
        # The first segment passes all ranks, the others follow it.
        segment = chain_segment(ranks, int(size / element), element) * element
        hop = machine.latency + segment / machine.bandwidth
        return ranks * hop + size / machine.bandwidth

    def all_gather(ranks, size):
        if ranks <= MOST_DIRECT:
            return direct(ranks, size)
        return (ranks - 1) * (machine.latency + size / ranks / machine.bandwidth)

    # Each layer of each micro-batch: two all-reduces forward and two backward, each a
    # reduce-scatter and an all-gather; with sequence parallelism the same bytes. Those of backward
    # go beside the weight gradients, a third of the layer's time.
    tensor = 0
    if tp > 1:
        one = 2 * direct(tp, hidden_bytes)
        layer = compute / (model.layers / pp * m)
        tensor = model.layers / pp * m * (2 * one + 2 * max(0.0, one - layer / 6))
    bubble = (pp - 1) / m * (compute + tensor)
    messages = 2 * m * (hidden_bytes / machine.bandwidth + machine.latency) if pp > 1 else 0
    bubble += messages / m * (pp - 1)  # the rest is under way while others compute
    data = 0
    if dp > 1:
        # Hidden behind the last micro-batch's backward pass, two thirds of its time, and the next
        # step's first forward pass; but for one bucket each, the last and the first.
        bucket = min(share, max(BUCKET, 1_000_000 * dp))
        sums = reduce_scatter(dp, share * 4, 4)
        weights = all_gather(dp, share * model.element)
        data = max(reduce_scatter(dp, bucket * 4, 4), sums - 2 / 3 * compute / m)
        data += max(all_gather(dp, bucket * model.element), weights - 1 / 3 * compute / m)
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


def print_messages():
    elements = next(iter(MODELS.values())).parameters()
    print(f"### Messages of an all-reduce of {elements:,} float32\n")
    print("| ranks | messages of a rank | under way at most | bytes of one |")
    print("|---:|---:|---:|---:|")
    for ranks in (2, 8, 64, 256, 1024):
        messages, under_way = all_reduce_messages(ranks, elements)
        sent = 2 * elements * 4 * ((ranks - 1) / ranks if ranks <= MOST_DIRECT else 1)
        print(f"| {ranks} | {messages:,} | {under_way} | {sent / messages:,.0f} |")
    print()


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
    print_messages()
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
