"""Writes golden.json beside it: what MindFormers 2.0 computes of small models, in NumPy's float64.

Formulas and layouts of matrices are those of MindFormers 2.0's pynative package: multi-head latent
attention, yarn, router, balance losses, multi-token prediction and loss. Derivatives are complex
steps, Im f(w + ih) / h, which have no cancellation. Weights, and tokens, follow from their names by
integers, so that the test makes the same without a file.

    python3 make_golden.py
"""

import json
import math
import os

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
STEP = 1e-40


# -- numbers that both sides make ------------------------------------------------------------------


def integers(name, count, bound):
    """A linear congruence that starts from the name; values below `bound`."""
    state = 12345
    for byte in name.encode():
        state = (state * 33 + byte) % 2**31
    out = []
    for _ in range(count):
        state = (state * 1103515245 + 12345) % 2**31
        out.append((state >> 12) % bound)
    return np.array(out)


def weight(name, shape):
    """Multiples of 1/256 up to half; gains lie around 1, embeddings are four times as large, and
    selection biases a quarter."""
    values = (integers(name, math.prod(shape), 257) - 128) / 512
    if name.endswith("norm.weight"):
        values = 1 + values / 2
    if name.startswith("tok_embeddings"):
        values = values * 4
    if name.endswith("expert_bias"):
        values = np.round(values * 256 / 4) / 256
    return values.reshape(shape).astype(complex)


# -- parts -----------------------------------------------------------------------------------------


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.real.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rms_norm(x, gain, eps=1e-6):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * gain


def linear(x, w):
    return x @ w.T


def mscale(scale, strength):
    return 1.0 if scale <= 1 else 0.1 * strength * math.log(scale) + 1


def yarn(c, d):
    """Angles of a position, per pair of d channels."""
    base, factor, length = c["rotary_base"], c["rotary_scaling_factor"], c["original_length"]
    i = np.arange(d // 2)
    f = base ** (-2.0 * i / d)

    def corr(r):
        return d * math.log(length / (2 * math.pi * r)) / (2 * math.log(base))

    low = max(math.floor(corr(c["beta_fast"])), 0)
    high = min(math.ceil(corr(c["beta_slow"])), d - 1)
    if low == high:
        high += 0.001
    ramp = np.clip((i - low) / (high - low), 0, 1)
    ms = mscale(factor, c["mscale"]) / mscale(factor, c["mscale_all_dim"])
    return ms * (f / factor * ramp + f * (1 - ramp))


def rotate(x, frequencies):
    """x [b, s, n, d]: channels in neighbouring pairs, de-interleaved and rotated in halves."""
    x = np.concatenate([x[..., 0::2], x[..., 1::2]], -1)
    angle = np.arange(x.shape[1])[:, None] * frequencies
    cos = np.concatenate([np.cos(angle)] * 2, -1)[None, :, None]
    sin = np.concatenate([np.sin(angle)] * 2, -1)[None, :, None]
    half = x.shape[-1] // 2
    turned = np.concatenate([-x[..., half:], x[..., :half]], -1)
    return x * cos + turned * sin


def latent_attention(c, w, x):
    b, s, _ = x.shape
    n, dn, dr, dv = c["heads"], c["qk_head_dim"], c["qk_pos_emb_head_dim"], c["v_head_dim"]
    rk = c["kv_lora_rank"]
    rq = c["q_lora_rank"] or n * (dn + dr)
    qkv = linear(x, w["linear_qkv"])
    q, latent, kr = qkv[..., :rq], qkv[..., rq : rq + rk], qkv[..., rq + rk :]
    if c["q_lora_rank"]:
        q = linear(rms_norm(q, w["q_layernorm"]), w["linear_qb"])
    q = q.reshape(b, s, n, dn + dr)
    kv = linear(rms_norm(latent, w["k_layernorm"]), w["linear_kvb"]).reshape(b, s, n, dn + dv)
    frequencies = yarn(c, dr)
    q_pe = rotate(q[..., dn:], frequencies)
    k_pe = np.repeat(rotate(kr[:, :, None], frequencies), n, 2)
    query = np.concatenate([q[..., :dn], q_pe], -1)
    key = np.concatenate([kv[..., :dn], k_pe], -1)
    m = mscale(c["rotary_scaling_factor"], c["mscale"])
    scores = np.einsum("bind,bjnd->bnij", query, key) * m * m / math.sqrt(dn + dr)
    scores = np.where(np.tril(np.ones((s, s), bool)), scores, -1e300)
    out = np.einsum("bnij,bjnd->bind", softmax(scores), kv[..., dn:])
    return linear(out.reshape(b, s, n * dv), w["linear_proj"])


def swiglu(gate, up):
    return gate * sigmoid(gate) * up


def mlp(w, x):
    """fc1's rows alternate between gate and up."""
    both = linear(x, w["linear_fc1"])
    return linear(swiglu(both[..., 0::2], both[..., 1::2]), w["linear_fc2"])


def top(values, k):
    return np.argsort(-values.real, axis=-1, kind="stable")[..., :k]


def scores_of(c, logits):
    kind = c["score_function"]
    if kind == "softmax":
        return softmax(logits)
    return sigmoid(logits) if kind == "sigmoid" else np.sqrt(np.log1p(np.exp(logits)))


def route(c, w, bias, x):
    """Gates [T, k], experts [T, k], logits [T, E]."""
    logits = linear(x, w)
    scores = scores_of(c, logits)
    choice = scores.real + (0 if bias is None else bias.real)
    if c["groups"]:
        groups = choice.reshape(len(choice), c["groups"], -1)
        best = np.sort(groups, -1)[..., -2:].sum(-1)
        kept = np.zeros_like(best, bool)
        np.put_along_axis(kept, top(best, c["group_topk"]), True, -1)
        choice = np.where(kept[..., None], groups, -np.inf).reshape(choice.shape)
    experts = top(choice, c["topk"])
    gates = np.take_along_axis(scores, experts, -1)
    if c["norm_topk_prob"]:
        gates = gates / (gates.sum(-1, keepdims=True) + 1e-20)
    return gates * c["scaling"], experts, logits


def switch_loss(c, p, counts, tokens):
    e, k = p.shape[-1], c["topk"]
    return c["coeff"] * e / (k * tokens**2) * (p.sum(0) * counts).sum()


def balance_loss(c, logits, rows):
    """Of the tokens of `rows` sequences, one after the other."""
    p = scores_of(c, logits)
    if c["score_function"] != "softmax":
        p = p / (p.sum(-1, keepdims=True) + 1e-20)
    routing_map = np.zeros(p.shape)
    np.put_along_axis(routing_map, top(p, c["topk"]), 1.0, -1)
    tokens = len(p)
    if c["balance"] == "seq_aux_loss":
        parts = zip(np.split(p, rows), np.split(routing_map, rows))
        return sum(switch_loss(c, q, m.sum(0), tokens // rows) for q, m in parts) / rows
    # global_aux_loss of the first micro-batch: the running mean of the counts is its own.
    return switch_loss(c, p, routing_map.sum(0), tokens)


def experts_of(c, w, x):
    """x [b, s, h] -> the layer's output and its balance loss."""
    flat = x.reshape(-1, x.shape[-1])
    gates, experts, logits = route(c, w["router"], w["expert_bias"], flat)
    out = np.zeros(flat.shape, complex)
    for j in range(c["topk"]):
        for e in range(c["experts"]):
            rows = np.nonzero(experts[:, j] == e)[0]
            gate = gates[rows, j][:, None]
            read = flat[rows] * gate if c["probs_on_input"] else flat[rows]
            both = read @ w["weight1"][e]
            half = both.shape[-1] // 2
            made = swiglu(both[:, :half], both[:, half:]) @ w["weight2"][e]
            out[rows] += made if c["probs_on_input"] else made * gate
    if c["shared"]:
        out = out + mlp(w["shared_experts"], flat)
    return out.reshape(x.shape), balance_loss(c, logits, x.shape[0])


# -- models ----------------------------------------------------------------------------------------

CASES = {
    # As DeepSeek-V3's files: groups, selection bias, a loss of each sequence, a layer ahead.
    "grouped": dict(q_lora_rank=6, score_function="sigmoid", groups=3, group_topk=2, bias=True,
                    norm_topk_prob=True, scaling=2.5, balance="seq_aux_loss", coeff=0.05,
                    probs_on_input=False, shared=True, mtp=1, mtp_factor=0.3, mscale=1.0,
                    mscale_all_dim=1.0),
    # What none of these has: direct queries, gates on inputs, angles that grow.
    "plain": dict(q_lora_rank=None, score_function="sqrtsoftplus", groups=0, group_topk=0,
                  bias=False, norm_topk_prob=False, scaling=1.5, balance="aux_loss", coeff=0.05,
                  probs_on_input=True, shared=False, mtp=0, mtp_factor=0, mscale=1.0,
                  mscale_all_dim=0.707),
}
COMMON = dict(vocab=11, hidden=8, layers=2, heads=2, qk_head_dim=4, qk_pos_emb_head_dim=4,
              v_head_dim=3, kv_lora_rank=5, ffn=6, experts=6, topk=2, expert_ffn=3,
              first_dense=1, rows=2, seq=6, rotary_base=100.0, rotary_scaling_factor=4.0,
              original_length=64, beta_fast=32.0, beta_slow=1.0)


def shapes(c):
    """Logical tensors, [out, in]."""
    h, n = c["hidden"], c["heads"]
    dn, dr, dv = c["qk_head_dim"], c["qk_pos_emb_head_dim"], c["v_head_dim"]
    rk = c["kv_lora_rank"]
    out = {"tok_embeddings.weight": (c["vocab"], h), "lm_head.weight": (c["vocab"], h),
           "final_norm.weight": (h,)}

    def add_mlp(prefix, width):
        out[prefix + "w_gate.weight"] = (width, h)
        out[prefix + "w_up.weight"] = (width, h)
        out[prefix + "w_down.weight"] = (h, width)

    for i in range(c["layers"] + c["mtp"]):
        p = f"layers.{i}."
        a = p + "attention."
        out[p + "attention_norm.weight"] = (h,)
        out[p + "ffn_norm.weight"] = (h,)
        if c["q_lora_rank"]:
            out[a + "wq_a.weight"] = (c["q_lora_rank"], h)
            out[a + "q_a_norm.weight"] = (c["q_lora_rank"],)
            out[a + "wq_b.weight"] = (n * (dn + dr), c["q_lora_rank"])
        else:
            out[a + "wq.weight"] = (n * (dn + dr), h)
        out[a + "wkv_a.weight"] = (rk + dr, h)
        out[a + "kv_a_norm.weight"] = (rk,)
        out[a + "wkv_b.weight"] = (n * (dn + dv), rk)
        out[a + "wo.weight"] = (h, n * dv)
        if i < c["first_dense"]:
            add_mlp(p + "feed_forward.", c["ffn"])
            continue
        out[p + "moe.router.weight"] = (c["experts"], h)
        if c["bias"]:
            out[p + "moe.router.expert_bias"] = (c["experts"],)
        for e in range(c["experts"]):
            add_mlp(f"{p}moe.experts.{e}.", c["expert_ffn"])
        if c["shared"]:
            add_mlp(p + "moe.shared_expert.", c["expert_ffn"])
    for i in range(c["layers"], c["layers"] + c["mtp"]):
        p = f"layers.{i}.mtp."
        for name in ("enorm", "hnorm", "final_norm"):
            out[p + name + ".weight"] = (h,)
        out[p + "eh_proj.weight"] = (h, 2 * h)
    return out


def fused_mlp(w, prefix):
    gate, up = w[prefix + "w_gate.weight"], w[prefix + "w_up.weight"]
    fc1 = np.empty((2 * len(gate), gate.shape[1]), complex)
    fc1[0::2], fc1[1::2] = gate, up
    return {"linear_fc1": fc1, "linear_fc2": w[prefix + "w_down.weight"]}


def layer_weights(c, w, i):
    """The tensors of a layer as MindFormers lays them out."""
    p = f"layers.{i}."
    a = p + "attention."
    first = w[a + ("wq_a.weight" if c["q_lora_rank"] else "wq.weight")]
    out = {"linear_qkv": np.concatenate([first, w[a + "wkv_a.weight"]]),
           "k_layernorm": w[a + "kv_a_norm.weight"], "linear_kvb": w[a + "wkv_b.weight"],
           "linear_proj": w[a + "wo.weight"]}
    if c["q_lora_rank"]:
        out["q_layernorm"], out["linear_qb"] = w[a + "q_a_norm.weight"], w[a + "wq_b.weight"]
    if i < c["first_dense"]:
        out["mlp"] = fused_mlp(w, p + "feed_forward.")
        return out
    names = [f"{p}moe.experts.{e}." for e in range(c["experts"])]
    out["router"] = w[p + "moe.router.weight"]
    out["expert_bias"] = w.get(p + "moe.router.expert_bias")
    out["weight1"] = np.stack([np.concatenate([w[n + "w_gate.weight"].T, w[n + "w_up.weight"].T], 1)
                               for n in names])
    out["weight2"] = np.stack([w[n + "w_down.weight"].T for n in names])
    if c["shared"]:
        out["shared_experts"] = fused_mlp(w, p + "moe.shared_expert.")
    return out


def layer(c, w, i, x):
    own = layer_weights(c, w, i)
    p = f"layers.{i}."
    x = x + latent_attention(c, own, rms_norm(x, w[p + "attention_norm.weight"]))
    read = rms_norm(x, w[p + "ffn_norm.weight"])
    made, balance = (mlp(own["mlp"], read), 0) if "mlp" in own else experts_of(c, own, read)
    return x + made, balance


def masked_mean(logits, labels, mask, epsilon):
    e = logits - logits.real.max(-1, keepdims=True)
    losses = np.log(np.exp(e).sum(-1)) - np.take_along_axis(e, labels[..., None], -1)[..., 0]
    return (mask * losses).sum() / (mask.sum() + epsilon)


def shifted(x):
    return np.concatenate([x[:, 1:], np.zeros_like(x[:, :1])], 1)


def batch(c):
    count = c["rows"] * c["seq"]
    shape = (c["rows"], c["seq"])
    ids = integers("tokens", count + 1, c["vocab"])
    labels = ids[1:].copy().reshape(shape)
    # What the layer ahead reads behind a row is token 0 in MindFormers and the row's last label in
    # Tapestry. It only counts in that layer's balance loss, and here both are one.
    labels[:, -1] = 0
    mask = (integers("mask", count, 5) > 0).astype(float).reshape(shape)
    return ids[:-1].reshape(shape), labels, mask


def model(c, w):
    """Loss, the layer ahead's part of the objective, balance losses."""
    ids, labels, mask = batch(c)
    table = w["tok_embeddings.weight"]
    x, balance = table[ids], 0
    for i in range(c["layers"]):
        x, part = layer(c, w, i, x)
        balance = balance + part
    x = rms_norm(x, w["final_norm.weight"])
    loss = masked_mean(linear(x, w["lm_head.weight"]), labels, mask, 1e-8)
    ahead = 0
    for k in range(c["mtp"]):
        i = c["layers"] + k
        p = f"layers.{i}.mtp."
        ids, labels, mask = shifted(ids), shifted(labels), shifted(mask)
        both = np.concatenate([rms_norm(table[ids], w[p + "enorm.weight"]),
                               rms_norm(x, w[p + "hnorm.weight"])], -1)
        x, part = layer(c, w, i, linear(both, w[p + "eh_proj.weight"]))
        balance = balance + part
        x = rms_norm(x, w[p + "final_norm.weight"])
        own = masked_mean(linear(x, w["lm_head.weight"]), labels, mask, 0)
        ahead = ahead + c["mtp_factor"] / c["mtp"] * own
    return loss, ahead, balance


def derivatives(function, tensors):
    """By each number of the tensors."""
    out = {}
    for name, t in tensors.items():
        gradient = np.zeros(t.size)
        flat = t.reshape(-1)
        for i in range(t.size):
            flat[i] += STEP * 1j
            gradient[i] = function().imag / STEP
            flat[i] -= STEP * 1j
        out[name] = gradient
    return out


def numbers(values):
    return [float(f"{v:.8g}") for v in np.asarray(values).reshape(-1)]


def model_case(name):
    c = {**COMMON, **CASES[name]}
    w = {key: weight(key, shape) for key, shape in shapes(c).items()}
    loss, ahead, balance = model(c, w)
    trained = {key: t for key, t in w.items() if not key.endswith("expert_bias")}
    gradients = derivatives(lambda: sum(model(c, w)), trained)
    return {"attention_scale": mscale(c["rotary_scaling_factor"], c["mscale"]) ** 2
            / math.sqrt(c["qk_head_dim"] + c["qk_pos_emb_head_dim"]),
            "loss": float(loss.real), "ahead": float(np.real(ahead)),
            "balance": float(np.real(balance)),
            "shapes": {key: list(shape) for key, shape in shapes(c).items()},
            "gradients": {key: numbers(g) for key, g in gradients.items()}}


def probe(gates):
    return (np.arange(gates.size).reshape(gates.shape) * 7 % 11 - 5) / 4


def router_case(function, balance, grouped):
    """One router of E experts over T tokens; the objective is probe . gates + the balance loss."""
    c = dict(score_function=function, balance=balance, groups=3 if grouped else 0, group_topk=2,
             topk=2, norm_topk_prob=grouped, scaling=1.25, coeff=0.5)
    w = weight("router." + function, (6, 8)) * 2
    x = weight("tokens." + balance, (10, 8)) * 2
    biased = grouped and function != "softmax"
    bias = weight("expert_bias", (6,)) if biased else None

    def parts():
        gates, experts, logits = route(c, w, bias, x)
        return gates, experts, balance_loss(c, logits, 2)

    def objective():
        gates, _, loss = parts()
        return (gates * probe(gates)).sum() + loss

    gates, experts, loss = parts()
    gradients = derivatives(objective, {"weight": w, "x": x})
    return {"function": function, "balance": balance, "grouped": grouped, "biased": biased,
            "gates": numbers(gates.real), "experts": experts.reshape(-1).tolist(),
            "loss": float(loss.real), "weight_gradient": numbers(gradients["weight"]),
            "x_gradient": numbers(gradients["x"])}


def yarn_case(d, base, factor, length, strength, strength_all):
    c = dict(rotary_base=base, rotary_scaling_factor=factor, original_length=length, beta_fast=32.0,
             beta_slow=1.0, mscale=strength, mscale_all_dim=strength_all)
    return {"channels": d, "base": base, "factor": factor, "length": length, "mscale": strength,
            "mscale_all_dim": strength_all, "angles": yarn(c, d).tolist()}


def main():
    golden = {
        "models": {name: model_case(name) for name in CASES},
        "routers": [router_case(function, balance, grouped)
                    for function in ("softmax", "sigmoid", "sqrtsoftplus")
                    for balance in ("aux_loss", "seq_aux_loss", "global_aux_loss")
                    for grouped in (False, True)],
        "yarn": [yarn_case(64, 10000.0, 40.0, 4096, 1.0, 1.0),
                 yarn_case(64, 10000.0, 40.0, 163840, 1.0, 0.707),
                 yarn_case(16, 500.0, 8.0, 128, 0.707, 1.0),
                 yarn_case(8, 100.0, 4.0, 8, 0.5, 0.25)],
    }
    with open(os.path.join(HERE, "golden.json"), "w", encoding="utf-8") as file:
        json.dump(golden, file, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
