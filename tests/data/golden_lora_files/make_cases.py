#!/usr/bin/env python3
"""Writes the cases of tests/golden/golden_lora_files_test.cpp beside itself.

A case is a folder with base/, adapter_start/, adapter_final/ and merged/, all as Hugging Face's
libraries lay them out; merged weights are computed here, in float64, from PEFT's definitions.
"""

import json
import pathlib
import struct

import numpy

HERE = pathlib.Path(__file__).parent
PREFIX = "base_model.model."


def write_safetensors(path, tensors):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name in sorted(tensors):
        size = tensors[name].size * 4
        header[name] = {"dtype": "F32", "shape": list(tensors[name].shape),
                        "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(tensors[name].astype("<f4").tobytes() for name in sorted(tensors))
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_json(path, content):
    path.write_text(json.dumps(content, indent=1))


class Maker:
    def __init__(self, seed):
        self.random = numpy.random.default_rng(seed)

    def tensor(self, *shape, scale=0.1):
        return (scale * self.random.standard_normal(shape)).astype(numpy.float32)


def llama(make, hidden=16, ffn=24, heads=4, groups=2, vocab=32, layers=3):
    kv = hidden // heads * groups
    base = {"model.embed_tokens.weight": make.tensor(vocab, hidden),
            "model.norm.weight": make.tensor(hidden), "lm_head.weight": make.tensor(vocab, hidden)}
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        for name, shape in {"self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (kv, hidden),
                            "self_attn.v_proj": (kv, hidden), "self_attn.o_proj": (hidden, hidden),
                            "mlp.gate_proj": (ffn, hidden), "mlp.up_proj": (ffn, hidden),
                            "mlp.down_proj": (hidden, ffn), "input_layernorm": (hidden,),
                            "post_attention_layernorm": (hidden,)}.items():
            base[prefix + name + ".weight"] = make.tensor(*shape)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocab,
              "torch_dtype": "float32", "bos_token_id": 1, "eos_token_id": 2,
              "tie_word_embeddings": False, "hidden_size": hidden, "intermediate_size": ffn,
              "num_hidden_layers": layers, "num_attention_heads": heads,
              "num_key_value_heads": groups, "max_position_embeddings": 16, "hidden_act": "silu",
              "rms_norm_eps": 1e-5, "rope_theta": 10000.0}
    return config, base


def gpt2(make, hidden=12, ffn=48, vocab=32, positions=16, layers=2):
    base = {"transformer.wte.weight": make.tensor(vocab, hidden),
            "transformer.wpe.weight": make.tensor(positions, hidden),
            "transformer.ln_f.weight": make.tensor(hidden),
            "transformer.ln_f.bias": make.tensor(hidden)}
    for layer in range(layers):
        prefix = f"transformer.h.{layer}."
        for name, shape in {"attn.c_attn": (hidden, 3 * hidden), "attn.c_proj": (hidden, hidden),
                            "mlp.c_fc": (hidden, ffn), "mlp.c_proj": (ffn, hidden),
                            "ln_1": (hidden,), "ln_2": (hidden,)}.items():
            base[prefix + name + ".weight"] = make.tensor(*shape)
            base[prefix + name + ".bias"] = make.tensor(shape[-1])
    config = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": vocab,
              "torch_dtype": "float32", "bos_token_id": 1, "eos_token_id": 2, "n_embd": hidden,
              "n_layer": layers, "n_head": 3, "n_positions": positions, "n_inner": ffn,
              "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "resid_pdrop": 0.0,
              "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return config, base


def adapter(make, base, ranks, transposed, dora, whole):
    tensors = {}
    for path, rank in ranks.items():
        out, into = base[path + ".weight"].shape[::-1 if transposed else 1]
        tensors[f"{PREFIX}{path}.lora_A.weight"] = make.tensor(rank, into, scale=0.4)
        tensors[f"{PREFIX}{path}.lora_B.weight"] = make.tensor(out, rank, scale=0.4)
        if dora:
            lengths = numpy.linalg.norm(base[path + ".weight"], axis=0 if transposed else 1)
            lengths = lengths * (1 + make.tensor(out, scale=0.2))
            tensors[f"{PREFIX}{path}.lora_magnitude_vector"] = lengths.astype(numpy.float32)
    for name in whole:
        tensors[PREFIX + name] = make.tensor(*base[name].shape)
    return tensors


def merged(base, tensors, ranks, scales, transposed, dora, whole):
    out = dict(base)
    for path in ranks:
        stem = PREFIX + path
        weight = base[path + ".weight"].astype(numpy.float64)
        weight = weight.T if transposed else weight
        a = tensors[stem + ".lora_A.weight"].astype(numpy.float64)
        b = tensors[stem + ".lora_B.weight"].astype(numpy.float64)
        weight = weight + scales[path] * (b @ a)
        if dora:
            magnitude = tensors[stem + ".lora_magnitude_vector"].astype(numpy.float64)
            weight = weight * (magnitude / numpy.linalg.norm(weight, axis=1))[:, None]
        out[path + ".weight"] = (weight.T if transposed else weight).astype(numpy.float32)
    for name in whole:
        out[name] = tensors[PREFIX + name]
    return out


def write_case(name, make, model, peft, ranks, scales, transposed=False, dora=False, whole=()):
    config, base = model
    folder = HERE / name
    keys = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "../base",
            "inference_mode": True, "init_lora_weights": True, "modules_to_save": None,
            "use_dora": dora, "bias": "none", "fan_in_fan_out": transposed, **peft}
    for part in ("base", "adapter_start", "adapter_final", "merged"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for part in ("base", "merged"):
        write_json(folder / part / "config.json", config)
    write_safetensors(folder / "base" / "model.safetensors", base)
    for part in ("adapter_start", "adapter_final"):
        tensors = adapter(make, base, ranks, transposed, dora, whole)
        write_json(folder / part / "adapter_config.json", keys)
        write_safetensors(folder / part / "adapter_model.safetensors", tensors)
    write_safetensors(folder / "merged" / "model.safetensors",
                      merged(base, tensors, ranks, scales, transposed, dora, whole))


def main():
    make = Maker(5)
    ranks, scales = {}, {}
    for layer in (0, 2):
        for name, rank in (("q_proj", 2), ("v_proj", 5)):
            ranks[f"model.layers.{layer}.self_attn.{name}"] = rank
        ranks[f"model.layers.{layer}.mlp.down_proj"] = 2
    ranks["model.layers.2.mlp.down_proj"] = 3
    for path, rank in ranks.items():
        scales[path] = (9.0 if path.endswith("q_proj") else 4.0) / rank**0.5
    write_case("llama_patterns", make, llama(make),
               {"r": 2, "lora_alpha": 4, "use_rslora": True, "lora_dropout": 0.1,
                "target_modules": ["q_proj", "v_proj", "mlp.down_proj"],
                "rank_pattern": {"v_proj": 5, "layers.2.mlp.down_proj": 3},
                "alpha_pattern": {".*q_proj": 9}, "layers_to_transform": [0, 2],
                "layers_pattern": "layers"}, ranks, scales)
    ranks = {f"transformer.h.{layer}.attn.{name}": 2 for layer in (0, 1)
             for name in ("c_attn", "c_proj")}
    write_case("gpt2_regex_dora", make, gpt2(make),
               {"r": 2, "lora_alpha": 3, "use_rslora": False, "lora_dropout": 0.0,
                "target_modules": r"transformer\.h\.\d+\.attn\.c_(attn|proj)",
                "modules_to_save": ["ln_f"], "rank_pattern": {}, "alpha_pattern": {}},
               ranks, dict.fromkeys(ranks, 1.5), transposed=True, dora=True,
               whole=("transformer.ln_f.weight", "transformer.ln_f.bias"))


main()
