#!/usr/bin/env python3
"""Writes the cases of golden_gguf here: two small random models as Hugging Face folders, the GGUF
files that an exporter must make of them, and what they say (NumPy, float64).

  python3 tests/data/golden_gguf/make_cases.py
"""
import json
import math
import os
import struct

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
H, HEADS, GROUPS, D, INNER, ROWS, POSITIONS = 32, 4, 2, 8, 64, 288, 64
KINDS = {"F32": (0, 0), "F16": (1, 1), "Q8_0": (8, 7), "BF16": (30, 32)}  # tensor type, file type
STEPS = 48


# -------------------------------------------------------------------------------------------- models
def llama_weights(rng):
    def w(*shape):
        return (rng.standard_normal(shape) * 0.3).astype(np.float32)

    def norm():
        return (1 + 0.1 * rng.standard_normal(H)).astype(np.float32)

    p = {"model.embed_tokens.weight": w(ROWS, H), "lm_head.weight": w(ROWS, H), "model.norm.weight": norm()}
    b = "model.layers.0."
    p |= {b + "input_layernorm.weight": norm(), b + "post_attention_layernorm.weight": norm(),
          b + "self_attn.q_proj.weight": w(HEADS * D, H), b + "self_attn.k_proj.weight": w(GROUPS * D, H),
          b + "self_attn.v_proj.weight": w(GROUPS * D, H), b + "self_attn.o_proj.weight": w(H, HEADS * D),
          b + "mlp.gate_proj.weight": w(INNER, H), b + "mlp.up_proj.weight": w(INNER, H),
          b + "mlp.down_proj.weight": w(H, INNER)}
    return p


def gpt2_weights(rng):
    def w(*shape):
        return (rng.standard_normal(shape) * 0.3).astype(np.float32)

    p = {"wte.weight": w(ROWS, H), "wpe.weight": w(POSITIONS, H)}
    for n in ("ln_f", "h.0.ln_1", "h.0.ln_2"):
        p |= {n + ".weight": 1 + w(H) * np.float32(0.3), n + ".bias": w(H)}
    for n, rows, columns in (("attn.c_attn", H, 3 * H), ("attn.c_proj", H, H), ("mlp.c_fc", H, INNER),
                             ("mlp.c_proj", INNER, H)):
        p |= {f"h.0.{n}.weight": w(rows, columns), f"h.0.{n}.bias": w(columns)}
    return {"transformer." + k: v for k, v in p.items()}


def attention(q, k, v):
    """[T, heads, D] each, keys of as many groups as there are."""
    t, per = q.shape[0], q.shape[1] // k.shape[1]
    out = np.empty_like(q)
    for h in range(q.shape[1]):
        s = q[:, h] @ k[:, h // per].T / math.sqrt(q.shape[2])
        s = np.where(np.tril(np.ones((t, t), bool)), s, -np.inf)
        e = np.exp(s - s.max(1, keepdims=True))
        out[:, h] = e / e.sum(1, keepdims=True) @ v[:, h // per]
    return out.reshape(t, -1)


def llama_logits(p, ids):
    def norm(x, name):
        return x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-5) * p[name]

    def turn(x):
        f = 10000.0 ** (-2.0 * np.arange(D // 2) / D)
        a = np.arange(len(ids))[:, None, None] * f
        c, s = np.cos(a), np.sin(a)
        x0, x1 = x[..., :D // 2], x[..., D // 2:]
        return np.concatenate((x0 * c - x1 * s, x1 * c + x0 * s), -1)

    b = "model.layers.0."
    x = p["model.embed_tokens.weight"][ids]
    y = norm(x, b + "input_layernorm.weight")
    q, k, v = (y @ p[b + f"self_attn.{n}_proj.weight"].T for n in "qkv")
    q, k, v = (a.reshape(len(ids), -1, D) for a in (q, k, v))
    x = x + attention(turn(q), turn(k), v) @ p[b + "self_attn.o_proj.weight"].T
    y = norm(x, b + "post_attention_layernorm.weight")
    g = y @ p[b + "mlp.gate_proj.weight"].T
    x = x + (g / (1 + np.exp(-g)) * (y @ p[b + "mlp.up_proj.weight"].T)) @ p[b + "mlp.down_proj.weight"].T
    return norm(x, "model.norm.weight") @ p["lm_head.weight"].T


def gpt2_logits(p, ids):
    p = {k.removeprefix("transformer."): v for k, v in p.items()}

    def norm(x, name):
        x = x - x.mean(1, keepdims=True)
        return x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-5) * p[name + ".weight"] + p[name + ".bias"]

    def linear(x, name):
        return x @ p[f"h.0.{name}.weight"] + p[f"h.0.{name}.bias"]

    x = p["wte.weight"][ids] + p["wpe.weight"][:len(ids)]
    q, k, v = (a.reshape(len(ids), -1, D) for a in np.split(linear(norm(x, "h.0.ln_1"), "attn.c_attn"), 3, 1))
    x = x + linear(attention(q, k, v), "attn.c_proj")
    y = linear(norm(x, "h.0.ln_2"), "mlp.c_fc")
    y = 0.5 * y * (1 + np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y ** 3)))
    return norm(x + linear(y, "mlp.c_proj"), "ln_f") @ p["wte.weight"].T


# ---------------------------------------------------------------------------------------- tokenizers
def added(content, number):
    return {"id": number, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": True}


def pieces():
    """SentencePiece-like: the id of a piece is its place."""
    vocab = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    vocab += ["\u2581", "t", "h", "e", "a", "n", "th", "\u2581th", "an", "\u2581the", "\u2581a"]
    merges = ["t h", "\u2581 th", "a n", "\u2581th e", "\u2581 a"]
    specials = vocab[:3]
    tokenizer = {
        "version": "1.0", "added_tokens": [added(t, i) for i, t in enumerate(specials)],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u2581"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
        "pre_tokenizer": None,
        "post_processor": {"type": "TemplateProcessing", "single": [
            {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True,
                  "vocab": {t: i for i, t in enumerate(vocab)}, "merges": merges}}
    rank = {a.replace(" ", ""): i for i, a in reversed(list(enumerate(merges)))}
    kinds = [2, 3, 3] + [6] * 256 + [1] * (len(vocab) - 259)
    scores = [-float(rank.get(t, len(merges))) if k == 1 else 0.0 for t, k in zip(vocab, kinds)]
    spare = ROWS - len(vocab)
    meta = [("model", "s", "llama"), ("pre", "s", "default"), ("tokens", "S", vocab + pads(len(vocab))),
            ("scores", "F", scores + [0.0] * spare), ("token_type", "I", kinds + [5] * spare),
            ("bos_token_id", "u", 1), ("eos_token_id", "u", 2), ("unknown_token_id", "u", 0),
            ("add_bos_token", "b", True), ("add_eos_token", "b", False), ("add_space_prefix", "b", True)]
    return tokenizer, meta


def byte_level():
    own = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    other = [b for b in range(256) if b not in own]
    text = {b: chr(b) for b in own} | {b: chr(256 + i) for i, b in enumerate(other)}
    merges = ["\u0120 t", "h e", "\u0120t he", "a n"]
    vocab = [text[b] for b in range(256)] + [m.replace(" ", "") for m in merges]
    end = len(vocab)
    tokenizer = {"version": "1.0", "added_tokens": [added("<|endoftext|>", end)], "normalizer": None,
                 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
                 "post_processor": None,
                 "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
                 "model": {"type": "BPE", "dropout": None, "unk_token": None, "byte_fallback": False,
                           "vocab": {t: i for i, t in enumerate(vocab)}, "merges": [m.split(" ") for m in merges]}}
    meta = [("model", "s", "gpt2"), ("pre", "s", "gpt-2"), ("tokens", "S", vocab + ["<|endoftext|>"] + pads(end + 1)),
            ("token_type", "I", [1] * end + [3] + [5] * (ROWS - end - 1)), ("merges", "S", merges),
            ("bos_token_id", "u", end), ("eos_token_id", "u", end), ("add_bos_token", "b", False),
            ("add_eos_token", "b", False)]
    return tokenizer, meta


def pads(first):
    return [f"[PAD{i}]" for i in range(first, ROWS)]


# --------------------------------------------------------------------------------------------- files
def text(s):
    return struct.pack("<Q", len(s.encode())) + s.encode()


def value(kind, v):
    return {"u": lambda: struct.pack("<II", 4, v), "f": lambda: struct.pack("<If", 6, v),
            "b": lambda: struct.pack("<IB", 7, v), "s": lambda: struct.pack("<I", 8) + text(v),
            "S": lambda: struct.pack("<IIQ", 9, 8, len(v)) + b"".join(map(text, v)),
            "I": lambda: struct.pack(f"<IIQ{len(v)}i", 9, 5, len(v), *v),
            "F": lambda: struct.pack(f"<IIQ{len(v)}f", 9, 6, len(v), *v)}[kind]()


def rounded(a, kind):
    if kind == "F32":
        return a.tobytes()
    if kind == "F16":
        return a.astype(np.float16).tobytes()
    if kind == "BF16":
        u = a.view(np.uint32)
        return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16).tobytes()
    out = b""
    for x in a.reshape(-1, 32):
        d = np.float32(np.abs(x).max() / np.float32(127))
        q = x * np.float32(1 / d if d else 0)
        out += np.float16(d).tobytes() + (np.sign(q) * np.floor(np.abs(q) + np.float32(0.5))).astype(np.int8).tobytes()
    return out


def gguf(path, meta, tensors, kind):
    head, infos, data = b"", b"", b""
    for key, k, v in meta:
        head += text(key) + value(k, v)
    for name, a in tensors:
        own = kind if a.ndim == 2 and name != "position_embd.weight" else "F32"
        infos += text(name) + struct.pack("<I", a.ndim) + struct.pack(f"<{a.ndim}Q", *a.shape[::-1])
        infos += struct.pack("<IQ", KINDS[own][0], len(data))
        data += rounded(np.ascontiguousarray(a), own)
        data += b"\0" * (-len(data) % 32)
    start = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(meta)) + head + infos
    with open(path, "wb") as f:
        f.write(start + b"\0" * (-len(start) % 32) + data)


def safetensors(path, tensors):
    entries, at = {"__metadata__": {"format": "pt"}}, 0
    for name, a in sorted(tensors.items()):
        entries[name] = {"dtype": "F32", "shape": list(a.shape), "data_offsets": [at, at + a.nbytes]}
        at += a.nbytes
    head = json.dumps(entries).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head + b"".join(a.tobytes() for _, a in sorted(tensors.items())))


def paired(w, heads):
    d = len(w) // heads
    return w[[h * d + s * (d // 2) + j for h in range(heads) for j in range(d // 2) for s in (0, 1)]]


def llama_tensors(p):
    b = "model.layers.0."
    out = [("token_embd.weight", p["model.embed_tokens.weight"]), ("output_norm.weight", p["model.norm.weight"]),
           ("output.weight", p["lm_head.weight"]), ("blk.0.attn_norm.weight", p[b + "input_layernorm.weight"]),
           ("blk.0.ffn_norm.weight", p[b + "post_attention_layernorm.weight"]),
           ("blk.0.attn_q.weight", paired(p[b + "self_attn.q_proj.weight"], HEADS)),
           ("blk.0.attn_k.weight", paired(p[b + "self_attn.k_proj.weight"], GROUPS)),
           ("blk.0.attn_v.weight", p[b + "self_attn.v_proj.weight"]),
           ("blk.0.attn_output.weight", p[b + "self_attn.o_proj.weight"])]
    return out + [(f"blk.0.ffn_{n}.weight", p[b + f"mlp.{n}_proj.weight"]) for n in ("gate", "up", "down")]


def gpt2_tensors(p):
    t = "transformer."
    out = [("token_embd.weight", p[t + "wte.weight"]), ("position_embd.weight", p[t + "wpe.weight"])]
    for ours, theirs in (("output_norm", "ln_f"), ("blk.0.attn_norm", "h.0.ln_1"), ("blk.0.ffn_norm", "h.0.ln_2")):
        out += [(f"{ours}.{k}", p[f"{t}{theirs}.{k}"]) for k in ("weight", "bias")]
    for ours, theirs in (("attn_qkv", "attn.c_attn"), ("attn_output", "attn.c_proj"), ("ffn_up", "mlp.c_fc"),
                         ("ffn_down", "mlp.c_proj")):
        out += [(f"blk.0.{ours}.weight", p[f"{t}h.0.{theirs}.weight"].T), (f"blk.0.{ours}.bias", p[f"{t}h.0.{theirs}.bias"])]
    return out


def metadata(arch, kind, vocab):
    out = [("general.architecture", "s", arch), ("general.type", "s", "model"), ("general.name", "s", "case"),
           ("general.file_type", "u", KINDS[kind][1]), ("general.quantization_version", "u", 2)]
    own = [("block_count", "u", 1), ("context_length", "u", POSITIONS), ("embedding_length", "u", H),
           ("feed_forward_length", "u", INNER), ("attention.head_count", "u", HEADS), ("vocab_size", "u", ROWS)]
    if arch == "gpt2":
        own += [("attention.layer_norm_epsilon", "f", 1e-5)]
    else:
        own += [("attention.head_count_kv", "u", GROUPS), ("attention.layer_norm_rms_epsilon", "f", 1e-5),
                ("attention.key_length", "u", D), ("attention.value_length", "u", D), ("rope.dimension_count", "u", D),
                ("rope.freq_base", "f", 10000.0)]
    return out + [(f"{arch}.{k}", t, v) for k, t, v in own] + [(f"tokenizer.ggml.{k}", t, v) for k, t, v in vocab]


def config(arch, bos, eos):
    common = {"model_type": arch, "vocab_size": ROWS, "torch_dtype": "float32", "bos_token_id": bos, "eos_token_id": eos}
    if arch == "gpt2":
        return common | {"architectures": ["GPT2LMHeadModel"], "n_embd": H, "n_layer": 1, "n_head": HEADS,
                         "n_positions": POSITIONS, "n_inner": INNER, "activation_function": "gelu_new",
                         "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return common | {"architectures": ["LlamaForCausalLM"], "hidden_size": H, "intermediate_size": INNER,
                     "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": GROUPS, "head_dim": D,
                     "max_position_embeddings": POSITIONS, "hidden_act": "silu", "rms_norm_eps": 1e-5,
                     "rope_theta": 10000.0, "tie_word_embeddings": False}


def continuation(logits, p, prompt):
    p = {k: v.astype(np.float64) for k, v in p.items()}
    ids, probs, gap = list(prompt), [], 1.0
    for step in range(STEPS):
        x = logits(p, ids)[-1]
        e = np.exp(x - x.max())
        e /= e.sum()
        first, second = np.sort(e)[::-1][:2]
        gap = min(gap, float(first - second))
        if step < 4:
            probs.append([round(float(v), 9) for v in e])
        ids.append(int(e.argmax()))
    return {"prompt": prompt, "ids": ids, "smallest_gap": gap, "probs": probs}


def main():
    cases = {"llama": (llama_weights, llama_logits, llama_tensors, pieces, 1, 2, [1, 260, 266, 268]),
             "gpt2": (gpt2_weights, gpt2_logits, gpt2_tensors, byte_level, 260, 260, [257, 100, 258])}
    for seed, (arch, (weights, logits, tensors, tokens, bos, eos, prompt)) in enumerate(cases.items()):
        folder = os.path.join(HERE, arch)
        os.makedirs(os.path.join(folder, "hf"), exist_ok=True)
        p = weights(np.random.default_rng(seed + 1))
        tokenizer, vocab = tokens()
        safetensors(os.path.join(folder, "hf", "model.safetensors"), p)
        for name, content in (("hf/config.json", config(arch, bos, eos)), ("hf/tokenizer.json", tokenizer),
                              ("expected.json", continuation(logits, p, prompt))):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
                json.dump(content, f, ensure_ascii=False)
                f.write("\n")
        for kind in KINDS:
            gguf(os.path.join(folder, kind + ".gguf"), metadata(arch, kind, vocab), tensors(p), kind)


if __name__ == "__main__":
    main()
