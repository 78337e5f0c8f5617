"""Computes the logits of a saved model from its config.json and its weights, and nothing else.

    reader.py FOLDER LOGITS LENGTH ID...          compares with the numbers in LOGITS
    reader.py --expect-other FOLDER LOGITS ...    fails unless they are far away
    reader.py --same FOLDER FOLDER                fails unless both hold the same bits and config.json

Written from what the transformers library documents of LlamaForCausalLM, Qwen2ForCausalLM and
GPT2LMHeadModel, in NumPy and float64; shares no code with the programs that wrote the folder.
"""
import json
import math
import os
import struct
import sys

import numpy as np

BOUND = 1e-5  # a float32 forward pass of such a size against float64


def read_safetensors(path):
    dtypes = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = file.read()
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        if entry["dtype"] == "BF16":
            bits = np.frombuffer(data[begin:end], "<u2").astype("<u4") << 16
            values = bits.view("<f4")
        else:
            values = np.frombuffer(data[begin:end], dtypes[entry["dtype"]])
        tensors[name] = values.reshape(entry["shape"]).astype(np.float64)
    return tensors


def read_fields(data):
    """(number, content) of a protobuf message whose fields are numbers and bytes."""

    def varint(at):
        value, shift = 0, 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value, at

    at = 0
    while at < len(data):
        key, at = varint(at)
        value, at = varint(at)
        if key % 8 == 2:
            value, at = data[at : at + value], at + value
        else:
            assert key % 8 == 0, "a field of the kind %d" % (key % 8)
        yield key // 8, value


def read_ckpt(path):
    """MindSpore's Checkpoint{Value{tag, TensorProto{dims, tensor_type, tensor_content}}}."""
    dtypes = {"Float64": "<f8", "Float32": "<f4", "Float16": "<f2"}
    found = {}
    with open(path, "rb") as file:
        for number, value in read_fields(memoryview(file.read())):
            assert number == 1
            fields = dict(read_fields(value))
            tensor = list(read_fields(fields[2]))
            dims = [size for number, size in tensor if number == 1]
            (dtype,) = [bytes(text).decode() for number, text in tensor if number == 2]
            (content,) = [bytes(part) for number, part in tensor if number == 3]
            kind, parts = found.setdefault(bytes(fields[1]).decode(), ((dtype, dims), []))
            assert kind == (dtype, dims)
            parts.append(content)
    return {
        name: np.frombuffer(b"".join(parts), dtypes[dtype]).reshape(dims).astype(np.float64)
        for name, ((dtype, dims), parts) in found.items()
    }


def of_modules(config, modules):
    """The tensors of MindFormers' parallel_core under the names that the formulas below know."""
    gpt = config["model_type"] == "gpt2"
    heads = config["n_head"] if gpt else config["num_attention_heads"]
    groups = heads if gpt else config["num_key_value_heads"]
    layers = config["n_layer"] if gpt else config["num_hidden_layers"]
    out = {}

    def take(name, to, turn=False):
        for ours, theirs in (("weight", "weight"), ("bias", "bias"), ("gamma", "weight"),
                             ("beta", "bias"), ("embedding_table", "weight")):
            if name + "." + ours in modules:
                values = modules.pop(name + "." + ours)
                out[to + "." + theirs] = values.T if turn and values.ndim == 2 else values

    def cut(name, pieces):
        for kind in ("weight", "bias"):
            if name + "." + kind in modules:
                yield kind, pieces(modules.pop(name + "." + kind))

    def heads_of(fused):
        each = fused.reshape((groups, heads // groups + 2, -1) + fused.shape[1:])
        parts = each[:, :-2], each[:, -2:-1], each[:, -1:]
        return [part.reshape((-1,) + fused.shape[1:]) for part in parts]

    top = "language_model."
    stem = "transformer." if gpt else "model."
    take(top + "embedding.word_embeddings", stem + ("wte" if gpt else "embed_tokens"))
    take(top + "embedding.position_embeddings", stem + "wpe")
    take(top + "encoder.final_norm", stem + ("ln_f" if gpt else "norm"))
    take(top + "output_layer", "lm_head")
    for i in range(layers):
        layer = top + "encoder.layers.%d." % i
        to = stem + ("h.%d." if gpt else "layers.%d.") % i
        take(layer + "input_norm", to + ("ln_1" if gpt else "input_layernorm"))
        take(layer + "post_attention_norm", to + ("ln_2" if gpt else "post_attention_layernorm"))
        take(layer + "attention.out_proj", to + ("attn.c_proj" if gpt else "self_attn.o_proj"), gpt)
        take(layer + "mlp.projection", to + ("mlp.c_proj" if gpt else "mlp.down_proj"), gpt)
        for kind, parts in cut(layer + "attention.qkv_proj", heads_of):
            if gpt:
                out[to + "attn.c_attn." + kind] = np.concatenate(parts).T
            else:
                for name, part in zip("qkv", parts):
                    out[to + "self_attn.%s_proj.%s" % (name, kind)] = part
        if gpt:
            take(layer + "mlp.mapping", to + "mlp.c_fc", True)
        else:
            for kind, parts in cut(layer + "mlp.mapping", lambda fused: np.split(fused, 2)):
                out[to + "mlp.gate_proj." + kind], out[to + "mlp.up_proj." + kind] = parts
    assert not modules, "tensors that belong to no module: %s" % sorted(modules)
    return out


def read_folder(folder):
    with open(os.path.join(folder, "config.json")) as file:
        config = json.load(file)
    ckpts = [name for name in os.listdir(folder) if name.endswith("_of.ckpt")]
    if ckpts:
        (name,) = ckpts
        return config, of_modules(config, read_ckpt(os.path.join(folder, name)))
    index = os.path.join(folder, "model.safetensors.index.json")
    files = ["model.safetensors"]
    if os.path.exists(index):
        with open(index) as file:
            files = sorted(set(json.load(file)["weight_map"].values()))
    tensors = {}
    for name in files:
        tensors.update(read_safetensors(os.path.join(folder, name)))
    return config, tensors


class Weights:
    """The tensors of a file; remembers which were asked for."""

    def __init__(self, tensors):
        self.tensors = tensors
        self.used = set()

    def __call__(self, name):
        self.used.add(name)
        return self.tensors[name]

    def linear(self, x, name, bias):
        y = x @ self(name + ".weight").T
        return y + self(name + ".bias") if bias else y

    def conv1d(self, x, name):
        return x @ self(name + ".weight") + self(name + ".bias")

    def check_all_used(self):
        left = set(self.tensors) - self.used
        assert not left, "tensors that no part of the model reads: %s" % sorted(left)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention(q, k, v, window=None):
    """q [rows, heads, n, d]; k, v [rows, groups, n, d]; a window sees that many keys."""
    groups = q.shape[1] // k.shape[1]
    k = np.repeat(k, groups, axis=1)
    v = np.repeat(v, groups, axis=1)
    n = q.shape[2]
    scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(q.shape[3])
    ahead = np.arange(n)[None, :] - np.arange(n)[:, None]
    hidden = ahead > 0
    if window is not None:
        hidden = hidden | (ahead <= -window)
    return softmax(np.where(hidden, -np.inf, scores)) @ v


def split_heads(x, heads):
    rows, n, width = x.shape
    return x.reshape(rows, n, heads, width // heads).transpose(0, 2, 1, 3)


def join_heads(x):
    rows, heads, n, size = x.shape
    return x.transpose(0, 2, 1, 3).reshape(rows, n, heads * size)


def rotate(x, theta, factor):
    n, size = x.shape[2], x.shape[3]
    frequencies = theta ** (-np.arange(0, size, 2) / size) / factor
    angles = np.arange(n)[:, None] * frequencies[None, :]
    cos, sin = np.cos(angles), np.sin(angles)
    first, second = x[..., : size // 2], x[..., size // 2 :]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def llama(config, tensors, ids):
    w = Weights(tensors)
    qwen2 = config["model_type"] == "qwen2"
    heads = config["num_attention_heads"]
    groups = config["num_key_value_heads"]
    attention_bias = not qwen2 and config["attention_bias"]
    mlp_bias = not qwen2 and config["mlp_bias"]
    scaling = config["rope_scaling"]
    factor = 1.0
    if scaling is not None:
        assert scaling["rope_type"] == "linear"
        factor = scaling["factor"]
    window = config["sliding_window"] if qwen2 and config["use_sliding_window"] else None
    assert config["hidden_act"] == "silu"

    def norm(x, name):
        mean = np.mean(x * x, -1, keepdims=True)
        return w(name + ".weight") * x / np.sqrt(mean + config["rms_norm_eps"])

    x = w("model.embed_tokens.weight")[ids]
    for i in range(config["num_hidden_layers"]):
        layer = "model.layers.%d." % i
        h = norm(x, layer + "input_layernorm")
        q, k, v = (
            split_heads(
                w.linear(h, layer + "self_attn." + name, qwen2 or attention_bias), count
            )
            for name, count in (("q_proj", heads), ("k_proj", groups), ("v_proj", groups))
        )
        assert q.shape[3] == config["head_dim"]
        q = rotate(q, config["rope_theta"], factor)
        k = rotate(k, config["rope_theta"], factor)
        mixed = join_heads(attention(q, k, v, window))
        x = x + w.linear(mixed, layer + "self_attn.o_proj", attention_bias)
        h = norm(x, layer + "post_attention_layernorm")
        gate = w.linear(h, layer + "mlp.gate_proj", mlp_bias)
        up = w.linear(h, layer + "mlp.up_proj", mlp_bias)
        x = x + w.linear(gate / (1 + np.exp(-gate)) * up, layer + "mlp.down_proj", mlp_bias)
    x = norm(x, "model.norm")
    tied = config["tie_word_embeddings"]
    logits = x @ w("model.embed_tokens.weight" if tied else "lm_head.weight").T
    w.check_all_used()
    return logits


def gpt2(config, tensors, ids):
    w = Weights(tensors)
    heads = config["n_head"]

    def norm(x, name):
        centred = x - x.mean(-1, keepdims=True)
        variance = np.mean(centred * centred, -1, keepdims=True)
        scaled = centred / np.sqrt(variance + config["layer_norm_epsilon"])
        return scaled * w(name + ".weight") + w(name + ".bias")

    def activation(x):
        if config["activation_function"] == "gelu_new":
            inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
            return 0.5 * x * (1 + np.tanh(inner))
        assert config["activation_function"] == "gelu"
        return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))

    positions = w("transformer.wpe.weight")
    assert positions.shape[0] == config["n_positions"]
    x = w("transformer.wte.weight")[ids] + positions[: ids.shape[1]]
    for i in range(config["n_layer"]):
        layer = "transformer.h.%d." % i
        fused = w.conv1d(norm(x, layer + "ln_1"), layer + "attn.c_attn")
        q, k, v = (split_heads(part, heads) for part in np.split(fused, 3, axis=-1))
        x = x + w.conv1d(join_heads(attention(q, k, v)), layer + "attn.c_proj")
        inner = activation(w.conv1d(norm(x, layer + "ln_2"), layer + "mlp.c_fc"))
        x = x + w.conv1d(inner, layer + "mlp.c_proj")
    x = norm(x, "transformer.ln_f")
    assert config["tie_word_embeddings"] is True
    logits = x @ w("transformer.wte.weight").T
    w.check_all_used()
    return logits


def same(one, two):
    configs, tensors = zip(read_folder(one), read_folder(two))
    assert configs[0] == configs[1], "config.json: %s and %s" % configs
    assert set(tensors[0]) == set(tensors[1]), "other tensors"
    for name, values in tensors[0].items():  # float64 holds what the files hold, sign of 0 included
        assert values.shape == tensors[1][name].shape, name
        assert values.tobytes() == tensors[1][name].tobytes(), name
    return 0


def main(words):
    if words[0] == "--same":
        return same(*words[1:])
    other = words[0] == "--expect-other"
    folder, expected, length = words[other : other + 3]
    ids = np.array([int(word) for word in words[other + 3 :]]).reshape(-1, int(length))
    config, tensors = read_folder(folder)
    classes = {
        "LlamaForCausalLM": llama,
        "Qwen2ForCausalLM": llama,
        "GPT2LMHeadModel": gpt2,
    }
    logits = classes[config["architectures"][0]](config, tensors, ids)
    with open(expected) as file:
        theirs = np.array([float(line) for line in file]).reshape(logits.shape)
    largest = np.abs(logits).max()
    distance = np.abs(theirs - logits).max()
    print("%s: largest logit %.3f, distance %.2e" % (config["model_type"], largest, distance))
    assert np.isfinite(theirs).all() and largest > 0.5, "logits that show nothing"
    if other:
        return 0 if distance > 1e-3 else 1
    return 0 if distance <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
