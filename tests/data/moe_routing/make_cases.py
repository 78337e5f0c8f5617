#!/usr/bin/env python3
"""Writes cases.json beside this file: what a router of experts decides and computes, in float64.

Logits are multiples of 1/64, so that float32 holds them, and sums of few of them, exactly. Where a case is not
about ties, all decisions have a distance of 1e-4 or more, far above the rounding of float32.

Gradients are those of probe . gates + aux_loss by the logits, with the choice as it is, from complex steps (Squire and
Trapp 1998): exact to rounding. The probe of gate i, in the order of `gates`, is ((7 i) mod 11 - 5) / 4.
"""
import itertools
import json
import math
import os

import numpy as np

NO_GAP = 1e9
DEFAULTS = dict(
    rows=2, seq_length=5, num_experts=8, moe_router_topk=2, score="softmax", pre_softmax=False, norm=None, scaling=1.0,
    method="greedy", num_groups=None, group_topk=None, bias=None, losses=[], device_groups=None, z=None, previous=None,
    capacity=None, policy="probs")


def ranked(values, allowed=None):
    """Places of a row, best first; of equals the lower one, NaN after all numbers."""
    places = [i for i in range(len(values)) if allowed is None or allowed[i]]
    return sorted(places, key=lambda i: (math.isnan(values[i]), 0 if math.isnan(values[i]) else -values[i], i))


def gap_between(values, order, i):
    """The distance of entries i and i + 1 of an order, if there are so many and both are numbers."""
    if i + 1 >= len(order):
        return NO_GAP
    gap = values[order[i]] - values[order[i + 1]]
    return NO_GAP if math.isnan(gap) else min(NO_GAP, gap)


def choose(c, values):
    experts, gap, group_gap, order_gap = [], NO_GAP, NO_GAP, NO_GAP
    k = c["moe_router_topk"]
    for row in values:
        allowed = None
        if c["method"] != "greedy":
            size = c["num_experts"] // c["num_groups"]
            groups = [row[g * size:(g + 1) * size] for g in range(c["num_groups"])]
            best = [[group[i] for i in ranked(group)] for group in groups]
            score = [b[0] + b[1] if c["method"] == "noaux_tc" else b[0] for b in best]
            order = ranked(score)
            group_gap = min(group_gap, gap_between(score, order, c["group_topk"] - 1))
            allowed = [i // size in order[:c["group_topk"]] for i in range(c["num_experts"])]
        order = ranked(row, allowed)
        experts.append(order[:k])
        gap = min(gap, gap_between(row, order, k - 1))
        for j in range(k - 1):
            order_gap = min(order_gap, gap_between(row, order, j))
    return experts, gap, group_gap, order_gap


def softmax(z):
    e = np.exp(z - z.real.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def logsumexp(z):
    m = z.real.max(-1, keepdims=True)
    return np.log(np.exp(z - m).sum(-1)) + m[..., 0]


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def normalises(c):
    return (not c["pre_softmax"]) if c["norm"] is None else c["norm"]


def after_choice(c):
    return c["score"] == "softmax" and not c["pre_softmax"] and normalises(c)


def scores_of(c, z):
    return softmax(z) if c["score"] == "softmax" else sigmoid(z)


def gates_of(c, z, experts):
    """z may be complex."""
    experts = np.array(experts)
    if after_choice(c):
        gates = softmax(np.take_along_axis(z, experts, -1))
    else:
        gates = np.take_along_axis(scores_of(c, z), experts, -1)
        if normalises(c) and c["moe_router_topk"] > 1:
            gates = gates / (gates.sum(-1, keepdims=True) + 1e-20)
    return gates * c["scaling"]


def counts_of(c, experts):
    return np.bincount(np.array(experts, dtype=np.int64).ravel(), minlength=c["num_experts"])


def aux_loss(c, z, counted):
    """z may be complex. `counted` are the experts whose assignments count."""
    n_exp, k, rows, length = (c[x] for x in ("num_experts", "moe_router_topk", "rows", "seq_length"))
    out = 0.0
    if c["losses"]:
        probs = scores_of(c, z)
        if c["score"] == "sigmoid":
            probs = probs / (probs.sum(-1, keepdims=True) + 1e-20)
        mean = probs.mean(0)
        share = counts_of(c, counted) / (rows * length * k)
    for kind, coeff in c["losses"]:
        if kind == "aux_loss":
            out = out + coeff * n_exp * (share * mean).sum()
        elif kind == "global_aux_loss":
            last = share if c["previous"] is None else np.array(c["previous"]) / np.sum(c["previous"])
            out = out + coeff * n_exp * (last * mean).sum()
        elif kind == "device":
            groups = c["device_groups"]
            pooled = [v.reshape(groups, -1).sum(1) for v in (share, mean)]
            out = out + coeff * groups * (pooled[0] * pooled[1]).sum()
        elif kind == "seq_aux_loss":
            for r in range(rows):
                of_row = slice(r * length, (r + 1) * length)
                share_of_row = counts_of(c, counted[of_row]) / (length * k)
                out = out + coeff * n_exp * (share_of_row * probs[of_row].mean(0)).sum() / rows
    if c["z"]:
        out = out + c["z"] * (logsumexp(z) ** 2).mean()
    return out


def keep(c, gates, experts, order_gap):
    tokens, k, n_exp = len(experts), c["moe_router_topk"], c["num_experts"]
    kept, dropped, gap = [[1] * k for _ in range(tokens)], [0] * n_exp, NO_GAP
    if c["capacity"] is None:
        return kept, dropped, gap
    capacity = min(tokens, math.ceil(tokens * k / n_exp * c["capacity"]))
    for e in range(n_exp):
        mine = [(t, j) for t in range(tokens) for j in range(k) if experts[t][j] == e]
        if c["policy"] == "probs":
            mine.sort(key=lambda a: (math.isnan(gates[a]), 0 if math.isnan(gates[a]) else -gates[a], a[0]))
            if len(mine) > capacity:
                near = gates[mine[capacity - 1]] - gates[mine[capacity]]
                gap = gap if math.isnan(near) else min(gap, near)
        elif c["policy"] == "choice":
            mine.sort(key=lambda a: (a[1], a[0]))
        for t, j in mine[capacity:]:
            kept[t][j] = 0
            dropped[e] += 1
    return kept, dropped, order_gap if c["policy"] == "choice" else gap


def gradient(c, logits, experts, counted):
    def loss(z):
        gates = gates_of(c, z, experts).ravel()
        probe = np.array([((7 * i) % 11 - 5) / 4 for i in range(gates.size)])
        return (gates * probe).sum() + aux_loss(c, z, counted)
    out, step = np.zeros(logits.shape), 1e-30
    for i in np.ndindex(logits.shape):
        z = logits.astype(np.complex128)
        z[i] += 1j * step
        out[i] = loss(z).imag / step
    return out


def solve(c, logits):
    with np.errstate(invalid="ignore"):
        scores = scores_of(c, logits)
    by_scores = c["score"] == "sigmoid" or c["bias"] is not None or c["method"] == "noaux_tc"
    unbiased = scores if by_scores else logits
    values = unbiased if c["bias"] is None else unbiased + np.array(c["bias"])
    experts, gap, group_gap, order_gap = choose(c, values)
    counted = experts
    if c["losses"] and c["bias"] is not None:
        counted, other_gap, other_group_gap, _ = choose(c, unbiased)
        gap, group_gap = min(gap, other_gap), min(group_gap, other_group_gap)
    gates = gates_of(c, logits, experts)
    kept, dropped, capacity_gap = keep(c, gates, experts, order_gap)
    out = dict(
        experts=experts, kept=kept if c["capacity"] is not None else [], tokens_per_expert=counts_of(c, experts).tolist(),
        dropped_per_expert=dropped, balance_counts=counts_of(c, counted).tolist(),
        router_gap=gap, group_gap=group_gap, capacity_gap=capacity_gap)
    if not np.isnan(logits).any():
        out.update(gates=gates.tolist(), grad=gradient(c, logits, experts, counted).tolist(),
                   aux_loss=float(aux_loss(c, logits, counted)))
    return out, min(gap, group_gap, order_gap, capacity_gap)


def rounded(x):
    """Ten digits; NaN as a text."""
    if isinstance(x, float):
        return "nan" if math.isnan(x) else float(f"{x:.10g}")
    if isinstance(x, (list, tuple)):
        return [rounded(v) for v in x]
    return {k: rounded(v) for k, v in x.items()} if isinstance(x, dict) else x


def case(name, logits=None, ties=False, seed=0, skew=None, spread=1.5, **keys):
    """Random logits unless some are given; `skew` is added to every token's."""
    c = {**DEFAULTS, **keys}
    tokens, n_exp = c["rows"] * c["seq_length"], c["num_experts"]
    if logits is None:
        rng = np.random.default_rng(seed)
        while True:
            logits = np.round(rng.normal(0, spread, (tokens, n_exp)) * 64) / 64
            if skew is not None:
                logits = logits + np.array(skew)
            answer, gap = solve(c, logits)
            if gap >= 1e-4:
                break
    else:
        logits = np.array(logits, dtype=np.float64)
        answer, gap = solve(c, logits)
    assert ties or gap >= 1e-4, (name, gap)
    return rounded(dict(name=name, config={k: v for k, v in c.items() if v != DEFAULTS[k] or k == "num_experts"},
                        logits=logits.tolist(), answer=answer))


def combinations():
    """Every way to score with every way to choose, with and without bias; losses and drops go round."""
    scorings = {
        "softmax": {}, "pre_softmax": dict(pre_softmax=True), "pre_softmax_norm": dict(pre_softmax=True, norm=True),
        "softmax_no_norm": dict(norm=False), "sigmoid": dict(score="sigmoid"), "sigmoid_no_norm": dict(score="sigmoid", norm=False)}
    methods = {
        "greedy": {}, "group_limited_greedy": dict(method="group_limited_greedy", num_groups=4, group_topk=2),
        "noaux_tc": dict(method="noaux_tc", num_groups=4, group_topk=2)}
    losses = itertools.cycle([
        dict(losses=[["aux_loss", 0.01]]), dict(losses=[["seq_aux_loss", 0.02]], z=0.001), dict(),
        dict(losses=[["device", 0.05]], device_groups=2), dict(losses=[["global_aux_loss", 0.03]], previous=[9, 0, 4, 1, 1, 7, 2, 40]),
        dict(losses=[["global_aux_loss", 0.03]]), dict(z=0.01),
        dict(losses=[["aux_loss", 0.01], ["device", 0.02], ["seq_aux_loss", 0.005]], device_groups=4, z=0.001)])
    drops = itertools.cycle([
        dict(capacity=0.9), dict(capacity=0.5, policy="position"), dict(capacity=0.75, policy="choice"), dict(), dict(capacity=1.25)])
    bias = [0.25, -0.125, 0.0, 0.5, -0.25, 0.0625, -0.5, 0.125]
    scaling = itertools.cycle([1.0, 2.5])
    for i, ((s, score), (m, method), biased) in enumerate(itertools.product(scorings.items(), methods.items(), (False, True))):
        yield case(f"{s}_{m}" + ("_bias" if biased else ""), seed=i, moe_router_topk=2 + i % 2, bias=bias if biased else None,
                   scaling=next(scaling), **score, **method, **next(losses), **next(drops))


def losses_and_drops():
    """Each loss and each policy with each kind of scores, without anything else."""
    previous = [3, 1, 4, 1, 5, 9, 2, 6]
    for i, (kind, score) in enumerate(itertools.product(
            ("aux_loss", "seq_aux_loss", "global_aux_loss", "device"), ("softmax", "sigmoid"))):
        yield case(f"{kind}_{score}", seed=100 + i, score=score, losses=[[kind, 0.01]],
                   device_groups=4 if kind == "device" else None, previous=previous if kind == "global_aux_loss" else None)
    for i, (policy, factor) in enumerate(itertools.product(("probs", "position", "choice"), (0.3, 1.0, 8.0))):
        yield case(f"drops_by_{policy}_{factor}", seed=120 + i, rows=3, seq_length=4, moe_router_topk=3, num_experts=6,
                   capacity=factor, policy=policy, skew=[1, 0.5, 0, 0, -0.5, -1])


def edges():
    same = [[0.5, 0.25, 0.5, 0.25, 0.5, 0.25, 0.0, 0.5]]
    flat = [[0.0] * 8]
    nan = float("nan")
    yield case("ties_go_to_lower_experts", same * 10, ties=True, moe_router_topk=3, capacity=0.5, losses=[["aux_loss", 0.01]])
    yield case("all_equal", flat * 10, ties=True, moe_router_topk=3, capacity=0.75, policy="choice")
    yield case("equal_gates_keep_lower_numbers", same * 10, ties=True, capacity=1.1)
    # Maxima of the groups: 0.5, 0.5, 0.5, 0.5; sums of the two best: 0.75, 0.75, 0.75, 0.5.
    yield case("ties_go_to_lower_groups", same * 10, ties=True, method="group_limited_greedy", num_groups=4, group_topk=2)
    yield case("sums_tie_of_lower_groups", [[-1, -1, 0.5, 0.25, 0.5, 0.25, 0.25, 0.5]] * 10, ties=True, score="sigmoid",
               method="noaux_tc", num_groups=4, group_topk=2)
    # The best groups have experts that are below those of the others.
    yield case("groups_are_exact", [[2, -2, 1.5, -1.75, 1, 1, 1, 1]] * 10, ties=True, method="group_limited_greedy",
               num_groups=4, group_topk=2, moe_router_topk=4)
    yield case("negative_bias_does_not_let_masked_experts_in", seed=200, score="sigmoid", method="noaux_tc", num_groups=4,
               group_topk=2, moe_router_topk=4, bias=[-3.0, -2.0, -1.5, -1.25, -2.5, -1.75, -3.5, -2.25])
    yield case("nan_comes_last", [[nan, 0.25, nan, 0.5, -1, nan, nan, nan], [nan] * 8] + [[3, nan, 2, 1, 0, -1, -2, -3]] * 8,
               ties=True, moe_router_topk=3, capacity=0.5)
    yield case("nan_in_groups", [[nan, nan, nan, 0.25, 0.5, nan, 0.125, nan], [nan] * 8] + [[3, nan, 2, 1, 0, -1, -2, -3]] * 8,
               ties=True, method="group_limited_greedy", num_groups=4, group_topk=2, moe_router_topk=3)
    yield case("all_experts", seed=201, num_experts=4, moe_router_topk=4, capacity=0.5, losses=[["aux_loss", 0.01]])
    yield case("all_experts_sigmoid_choice", seed=202, score="sigmoid", num_experts=4, moe_router_topk=4, capacity=0.5, policy="choice")
    yield case("one_token", seed=203, rows=1, seq_length=1, losses=[["seq_aux_loss", 0.01]], z=0.01, capacity=0.1)
    yield case("one_choice_pre_softmax", seed=204, pre_softmax=True, moe_router_topk=1, losses=[["aux_loss", 0.01]], capacity=0.75)
    yield case("one_choice_pre_softmax_norm", seed=205, pre_softmax=True, norm=True, moe_router_topk=1)
    yield case("one_choice_sigmoid", seed=206, score="sigmoid", moe_router_topk=1, capacity=0.75, policy="choice")
    yield case("idle_experts", seed=207, skew=[9, 9, 0, 0, 0, 0, 0, 0], losses=[["aux_loss", 0.01]], capacity=1.0)
    yield case("everything_to_one_expert", seed=208, pre_softmax=True, moe_router_topk=1, skew=[0, 0, 0, 9, 0, 0, 0, 0], spread=0.5,
               losses=[["device", 0.01]], device_groups=4, capacity=2.0, policy="position")
    yield case("large_logits", seed=209, spread=120.0, losses=[["aux_loss", 0.01]], z=1e-4)
    yield case("sigmoids_that_underflow", [[-60.0 - (i + t) % 8 for i in range(8)] for t in range(10)],
               ties=True, score="sigmoid", moe_router_topk=2, losses=[["aux_loss", 0.01]], policy="position", capacity=1.0)
    yield case("capacity_of_all_tokens", seed=211, capacity=100.0, skew=[3, 2, 0, 0, 0, 0, 0, 0])


def main():
    cases = [*combinations(), *losses_and_drops(), *edges()]
    assert len({c["name"] for c in cases}) == len(cases)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cases.json")
    with open(path, "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]\n")
    print(len(cases), "cases,", sum(sum(c["answer"]["dropped_per_expert"]) > 0 for c in cases), "of them drop")


if __name__ == "__main__":
    main()
