#!/usr/bin/env python3
"""Writes the inputs `whole_*` of the fuzzers' corpus, and a few that are wrong in one place.

  make_corpus.py CHECKPOINT

CHECKPOINT is a checkpoint of a tiny model, whose training_state.json and config.json are taken
along. What fuzzers have found (`found_*`) is left as it is.
"""

import json
import pathlib
import struct
import sys

CORPUS = pathlib.Path(__file__).parent / "corpus"


def put(target, name, content):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return f"{crc ^ 0xFFFFFFFF:08x}"


def safetensors(tensors, metadata=None):
    """tensors: {name: (dtype, shape, bytes)}."""
    header, data = {}, b""
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, (dtype, shape, values) in tensors.items():
        offsets = [len(data), len(data) + len(values)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        data += values
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def gguf(metadata, tensors):
    """metadata: {key: value}; tensors: {name: (type, sizes, bytes)}, the fastest size first."""
    def text(value):
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def plain(value):
        if isinstance(value, bool):
            return 7, struct.pack("<B", value)
        if isinstance(value, int):
            return 4, struct.pack("<I", value)
        if isinstance(value, float):
            return 6, struct.pack("<f", value)
        return 8, text(value)

    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        out += text(key)
        if isinstance(value, list):
            kind = plain(value[0])[0] if value else 8
            out += struct.pack("<IIQ", 9, kind, len(value)) + b"".join(plain(one)[1] for one in value)
        else:
            out += struct.pack("<I", plain(value)[0]) + plain(value)[1]
    offset = 0
    for name, (kind, sizes, values) in tensors.items():
        out += text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)
        offset += len(values) + -len(values) % 32
    out += b"\0" * (-len(out) % 32)
    for _, _, values in tensors.values():
        out += values + b"\0" * (-len(values) % 32)
    return out


def gguf_model(pieces, quantised):
    """A llama of one layer with 32 channels, or 8."""
    width = 32 if quantised else 8
    inner = 2 * width
    plain_bytes = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    others = iter(range(256, 512))
    printed = [chr(b) if b in plain_bytes else chr(next(others)) for b in range(256)]
    tokens = ["<unk>"] + [f"<0x{b:02X}>" for b in range(256)] + ["\u2581", "a", "\u2581a"] if pieces \
        else printed + ["ab", "<|end|>"]
    types = [2] + [6] * 256 + [1, 1, 1] if pieces else [1] * 257 + [3]
    metadata = {
        "general.architecture": "llama", "llama.block_count": 1, "llama.context_length": 16,
        "llama.embedding_length": width, "llama.feed_forward_length": inner,
        "llama.attention.head_count": 2, "llama.attention.head_count_kv": 1,
        "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": 10000.0,
        "llama.rope.dimension_count": width // 2, "tokenizer.ggml.model": "llama" if pieces else "gpt2",
        "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.eos_token_id": len(tokens) - 1, "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": "{{ messages[0]['content'] }}"}
    if pieces:
        metadata["tokenizer.ggml.scores"] = [-float(i) for i in range(len(tokens))]
    else:
        metadata["tokenizer.ggml.pre"] = "gpt-2"
        metadata["tokenizer.ggml.merges"] = ["a b"]

    def floats(*sizes):
        count = sizes[0] * (sizes[1] if len(sizes) > 1 else 1)
        return 0, sizes, b"".join(struct.pack("<f", i % 7 - 3) for i in range(count))

    def blocks(kind, size, *sizes):
        count = sizes[0] * sizes[1] // 32
        return kind, sizes, b"".join(b"\0\x30" + bytes(range(i, i + size - 2)) for i in range(count))

    def matrix(*sizes):
        if not quantised:
            return floats(*sizes)
        return blocks(8, 34, *sizes) if sizes[1] == width else blocks(2, 18, *sizes)

    return gguf(metadata, {
        "token_embd.weight": (1, (width, len(tokens)), b"\0\x2c" * width * len(tokens)),
        "blk.0.attn_norm.weight": floats(width), "blk.0.attn_q.weight": matrix(width, width),
        "blk.0.attn_k.weight": matrix(width, width // 2), "blk.0.attn_v.weight": matrix(width, width // 2),
        "blk.0.attn_output.weight": matrix(width, width), "blk.0.ffn_norm.weight": floats(width),
        "blk.0.ffn_gate.weight": matrix(width, inner), "blk.0.ffn_up.weight": matrix(width, inner),
        "blk.0.ffn_down.weight": matrix(inner, width), "output_norm.weight": floats(width)})


def varint(number):
    out = b""
    while number >= 128:
        out += bytes([number % 128 + 128])
        number //= 128
    return out + bytes([number])


def ckpt(values):
    """values: (tag, type, dims, bytes), several of the same tag for the parts of a tensor."""
    def field(number, content):
        return varint(number * 8 + 2) + varint(len(content)) + content

    out = b""
    for tag, kind, dims, content in values:
        tensor = b"".join(b"\x08" + varint(dim) for dim in dims)
        tensor += field(2, kind.encode()) + field(3, content)
        out += field(1, field(1, tag.encode()) + field(2, tensor))
    return out


def npy(descr, shape, values, fortran=False, version=1):
    text = f"{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}"
    start = b"\x93NUMPY" + bytes([version, 0])
    length = 2 if version == 1 else 4
    text += " " * (-(len(start) + length + len(text) + 1) % 64) + "\n"
    return start + struct.pack("<H" if version == 1 else "<I", len(text)) + text.encode() + values


def bundle(files):
    files = {n: c.encode() if isinstance(c, str) else c for n, c in files.items()}
    return b"\n".join(b"=== " + name.encode() + b"\n" + content for name, content in files.items())


def manifest(files, step=7):
    entries = {n: {"bytes": len(c), "crc32c": crc32c(c)} for n, c in files.items()}
    return json.dumps({"format_version": 1, "step": step, "files": entries}, indent=2) + "\n"


def write_tensors():
    f32 = struct.pack("<6f", 1.5, -2, 0, 3e38, -1e-40, float("inf"))
    two = safetensors({"a": ("F32", [2, 3], f32), "b": ("BF16", [], b"\x80\x3e")})
    put("safetensors", "whole_two", two)
    put("safetensors", "whole_empty", safetensors({}))
    widths = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I64": 8, "I32": 4, "BOOL": 1, "I8": 1,
              "U8": 1, "I16": 2, "U64": 8, "U32": 4, "U16": 2, "F8_E4M3": 1}
    every = {f"t.{d}": (d, [1, 2], bytes(i % 2 for i in range(2 * w))) for d, w in widths.items()}
    every["none"] = ("F32", [3, 0], b"")
    every["F4"] = ("F4", [4], b"ab")
    put("safetensors", "whole_every_dtype", safetensors(every, {"format": "pt", "step": "7"}))
    put("safetensors", "truncated", two[:-3])
    put("safetensors", "bool_of_2", safetensors({"a": ("BOOL", [2], b"\1\2")}))
    put("safetensors", "overlap", two.replace(b"[24,26]", b"[22,24]"))

    plain = gguf_model(False, False)
    put("gguf", "whole_bytes", plain)
    put("gguf", "whole_pieces", gguf_model(True, False))
    put("gguf", "whole_blocks", gguf_model(False, True))
    put("gguf", "truncated", plain[:-100])

    put("npy", "whole_f4", npy("<f4", (2, 3), f32))
    put("npy", "whole_big_endian_columns", npy(">i2", (2, 2, 1), bytes(range(8)), fortran=True))
    put("npy", "whole_u8_version_2", npy("<u8", (2,), struct.pack("<QQ", 1, 2**63 - 1), version=2))
    put("npy", "whole_bool_version_3", npy("|b1", (), b"\1", version=3))
    put("npy", "objects", npy("|O", (1,), b"\x80\x04K\x01."))

    second = safetensors({"c": ("I32", [2], bytes(8))})
    where = {"metadata": {"total_size": 34}, "weight_map": {"a": "m-1.safetensors",
             "b": "m-1.safetensors", "c": "m-2.safetensors"}}
    shards = {"m-1.safetensors": two, "m-2.safetensors": second}
    index = "model.safetensors.index.json"
    put("index", "whole_shards", bundle({index: json.dumps(where), **shards}))
    put("index", "whole_single", bundle({"model.safetensors": two}))
    put("index", "whole_with_odd_size",
        bundle({index: json.dumps({"weight_map": {"c": "m-2.safetensors"},
                                   "metadata": {"total_size": 1e300}}), **shards}))
    put("index", "shard_of_another_folder",
        bundle({index: json.dumps(where).replace("m-2", "../m-2"), **shards}))
    put("index", "number_beyond_double",
        bundle({index: json.dumps(where).replace("34", "1e999"), **shards}))
    put("index", "shard_missing", bundle({index: json.dumps(where), "m-1.safetensors": two}))


def write_ckpts():
    f32 = struct.pack("<6f", 1.5, -2, 0, 3e38, -1e-40, float("inf"))
    two = ckpt([("a", "Float32", [2, 3], f32), ("b", "BFloat16", [0], b"\x80\x3e")])
    put("ckpt", "whole_two", two)
    put("ckpt", "whole_parts", ckpt([("a", "Float32", [2, 3], f32[:10]),
                                     ("a", "Float32", [2, 3], f32[10:])]))
    widths = {"Float64": 8, "Float16": 2, "Int64": 8, "Int32": 4, "Int8": 1, "UInt8": 1, "Bool": 1,
              "Int16": 2, "UInt64": 8, "str": 4, "random_op": 1}
    put("ckpt", "whole_every_type",
        ckpt([(f"t.{t}", t, [2], bytes(i % 2 for i in range(2 * w))) for t, w in widths.items()] +
             [("none", "Float32", [3, 0], b"")]))
    packed = b"\x0a\x02\x02\x03\x12\x07Float32\x1a\x18" + f32
    put("ckpt", "whole_packed_dims",
        b"\x0a" + varint(5 + len(packed)) + b"\x0a\x01a\x12" + varint(len(packed)) + packed)
    put("ckpt", "truncated", two[:-3])
    put("ckpt", "dims_beyond_64_bits", two.replace(b"\x08\x02\x08\x03", b"\x08\xff\xff\xff"))
    put("ckpt", "again", two + two)


def write_manifests():
    files = {"config.json": b"{}\n", "model.safetensors": safetensors({"a": ("U8", [3], b"abc")}),
             "empty": b""}
    good = manifest(files)
    put("manifest", "whole_three", bundle({"manifest.json": good, **files}))
    put("manifest", "whole_none", bundle({"manifest.json": manifest({}, step=0)}))
    put("manifest", "whole_without_manifest", bundle(files))
    put("manifest", "altered", bundle({"manifest.json": good, **files, "config.json": b"[]\n"}))
    put("manifest", "torn", bundle({"manifest.json": good[:60], **files}))
    put("manifest", "step_of_64_bits",
        bundle({"manifest.json": manifest({}, step=2**63)}))
    put("manifest", "size_beyond_double",
        bundle({"manifest.json": good.replace('"bytes": 3', '"bytes": -1e999'), **files}))
    put("manifest", "itself", bundle({"manifest.json": manifest({"manifest.json": b"x"})}))


def write_states(checkpoint):
    state = json.loads((checkpoint / "training_state.json").read_text())
    trainer = state["trainer"]

    def put_state(name, **changes):
        changed = json.loads(json.dumps(state))
        changed["trainer"].update(changes)
        put("training_state", name, json.dumps(changed, separators=(",", ":")))

    put_state("whole_tiny")
    put_state("whole_constant", schedule={"type": "constant", "learning_rate": 1e-3,
                                          "weight_decay": 0}, data=None)
    put_state("whole_by_updates",
              schedule={"type": "learning_rate_scheduler_kwargs", "learning_rate": 1e-3,
                        "end_learning_rate": 1e-5, "warmup_steps": 10, "decay_steps": 100,
                        "power": 2.0, "use_cosine": False, "weight_decay": 0.1},
              loss_scaler={"scale": 65536.0, "good_steps": 12},
              best={"metric": "loss", "value": 2.5, "step": 3},
              data={"format_version": 1, "begun": {"step": 0, "sample": 0},
                    "position": {"step": 4, "sample": 32}, "seq_length": 32,
                    "recorded_steps": {"directory": "steps", "steps": 9,
                                       "crc64": "0123456789abcdef"}})
    blend = dict(trainer["data"])
    only = trainer["data"]["train"]["datasets"][0]
    blend["train"] = {"datasets": [{**only, "weight": 0.3}, {**only, "weight": 0.7}],
                      "samples": [100, 200]}
    wsd = {**trainer["schedule"], "lr_decay_style": "WSD", "lr_wsd_decay_style": "exponential",
           "lr_wsd_decay_iters": 2, "training_iters": 100}
    put_state("whole_blend_wsd", data=blend, schedule=wsd)
    put_state("number_too_large", tokens=2**64)
    put_state("scale_beyond_float32", loss_scaler={"scale": 1e300, "good_steps": 0})
    put_state("schedule_of_too_many_samples",
              schedule={**trainer["schedule"], "global_batch_size": 2**62})
    put_state("schedule_of_negative_rate", schedule={**trainer["schedule"], "min_lr": -1})
    put_state("schedule_of_64_bits", schedule={**trainer["schedule"], "training_iters": 2**63})


def write_examples():
    def said(role, content, **more):
        return {"role": role, "content": content, **more}

    kinds = [
        {"prompt": "2+2=", "completion": "4"},
        {"text": "a plain text \u00e9\U0001f600"},
        {"messages": [said("user", "q"), said("assistant", "a"), said("user", "r"),
                      said("assistant", "b")], "tools": [{"name": "f", "parameters": {}}]},
        {"messages": [said("user", "q"), said("assistant", "a", thought="t"), said("user", "r"),
                      said("assistant", None, tool_calls=[{"id": 1}])]},
    ]
    lines = [json.dumps(kind, ensure_ascii=False) for kind in kinds]
    put("sft_jsonl", "whole", "\n".join(lines) + "\n")
    put("sft_jsonl", "whole_bom_and_blank_lines",
        b"\xef\xbb\xbf" + "\r\n \n".join(lines).encode())
    put("sft_jsonl", "whole_long", json.dumps({"prompt": "p" * 30, "completion": "c" * 50}) + "\n" +
        json.dumps({"prompt": "p" * 90, "completion": "c"}))
    put("sft_jsonl", "many_turns", json.dumps({"messages": [
        said("user" if i % 2 == 0 else "assistant", str(i), thought="t") for i in range(60)]}))
    put("sft_jsonl", "two_kinds", json.dumps({"text": "a", "prompt": "b", "completion": "c"}))
    put("sft_jsonl", "surrogate", '{"text": "\\ud800"}')
    put("sft_jsonl", "deep", '{"messages": [{"role": "user", "content": ' + "[" * 300)
    put("sft_jsonl", "gzip", b"\x1f\x8b\x08\x00")


def write_hf_configs(checkpoint):
    put("hf_config", "whole_tapestry", (checkpoint / "config.json").read_text())
    llama = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 512,
             "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
             "hidden_act": "silu", "max_position_embeddings": 256, "initializer_range": 0.02,
             "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "rope_scaling": None,
             "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False,
             "bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": None,
             "torch_dtype": "bfloat16", "use_cache": True}
    put("hf_config", "whole_llama", json.dumps(llama))
    put("hf_config", "whole_llama_linear",
        json.dumps({**llama, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}))
    put("hf_config", "whole_mistral",
        json.dumps({**llama, "architectures": ["MistralForCausalLM"], "model_type": "mistral",
                    "sliding_window": 128}))
    put("hf_config", "whole_qwen2",
        json.dumps({**llama, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2",
                    "use_sliding_window": False, "max_window_layers": 2,
                    "sliding_window": 4096}))
    gpt2 = {"model_type": "gpt2", "vocab_size": 512, "n_positions": 256, "n_embd": 64, "n_layer": 2,
            "n_head": 4, "n_inner": None, "activation_function": "gelu_new", "resid_pdrop": 0.1,
            "embd_pdrop": 0.1, "attn_pdrop": 0.1, "layer_norm_epsilon": 1e-5,
            "initializer_range": 0.02, "bos_token_id": 0, "eos_token_id": 0,
            "tie_word_embeddings": True}
    put("hf_config", "whole_gpt2", json.dumps(gpt2))
    experts = {**llama, "num_experts_per_tok": 2, "output_router_logits": False,
               "router_aux_loss_coef": 0.001}
    put("hf_config", "whole_mixtral",
        json.dumps({**experts, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral",
                    "num_local_experts": 8, "router_jitter_noise": 0.01, "sliding_window": None}))
    put("hf_config", "whole_qwen2_moe",
        json.dumps({**experts, "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe",
                    "num_experts": 8, "moe_intermediate_size": 32, "norm_topk_prob": False,
                    "shared_expert_intermediate_size": 64, "decoder_sparse_step": 2,
                    "mlp_only_layers": [0], "use_sliding_window": False, "max_window_layers": 2}))


def write_adapter_configs():
    usual = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "../base",
             "inference_mode": True, "init_lora_weights": True, "modules_to_save": None, "r": 4,
             "lora_alpha": 8, "target_modules": ["q_proj", "mlp.down_proj"], "use_rslora": False,
             "use_dora": False, "rank_pattern": {}, "alpha_pattern": {}, "lora_dropout": 0.0,
             "bias": "none", "fan_in_fan_out": False, "layers_to_transform": None}

    def put_adapter(name, **keys):
        put("adapter_config", name, json.dumps({**usual, **keys}, indent=1))

    put_adapter("whole_list")
    put_adapter("whole_patterns", target_modules=r".*\.self_attn\.(q|v)_proj",
                exclude_modules=["layers.0.self_attn.q_proj"], use_rslora=True,
                rank_pattern={"v_proj": 7, r"layers\.\d+\.self_attn\.q_proj": 3},
                alpha_pattern={".*q_proj": 2.5})
    put_adapter("whole_layers", layers_to_transform=[0, 5], layers_pattern=["layers", "h"],
                modules_to_save=["lm_head", "embed_tokens"], use_dora=True, auto_mapping=None,
                eva_config=None, loftq_config={}, runtime_config={"ephemeral_gpu_offload": False},
                qalora_group_size=16)
    put_adapter("whole_all_linear", target_modules="all-linear", layers_to_transform=1)
    put_adapter("wrong_bias", bias="lora_only")
    put_adapter("wrong_start", init_lora_weights="pissa")
    put_adapter("wrong_pattern", target_modules="(a+)+$(")
    put_adapter("slow_pattern", target_modules="(a|[a-z.0-9_]+)+(b|[a-z.0-9_]+)+[XYZ]")
    put_adapter("wrong_rank", rank_pattern={"q_proj": 0, "v_proj": -1, "k_proj": 1e300})
    put("adapter_config", "wrong_twice",
        '{"peft_type": "LORA", "r": 4, "r": 8, "target_modules": ["q_proj"]}')


def write_curves():
    lines = [json.dumps({"step": step, "loss": 3 - step / 10, "grad_norm": 1.5, "finite": True})
             for step in range(1, 5)]
    put("curves", "whole_metrics", "\n".join(lines) + "\n")
    put("curves", "whole_table", "step,loss,grad_norm\n1,3.5,1\n2,nan,\n5,-inf,2e-3\n")
    put("curves", "whole_quoted", '"Wall time"\t"Step"\t"my ""run"" - loss"\n1\t"2"\t"3.5"\n')
    put("curves", "whole_started_over", "iteration;lm loss\n1;3\n2;2\n2;1\n1;4\n")


def write_sides():
    put("checklist", "whole_megatron",
        "ARGS=\"\n --num-layers 2 --hidden-size 64 \\\n --num-attention-heads=4 --swiglu\n\"\n"
        "torchrun pretrain_gpt.py $ARGS --lr 1e-3 --train-iters 20 # --lr 2\n"
        " --global-batch-size 4 --lr-decay-style cosine --num-experts 4 --moe-layer-freq 2 --bf16\n")
    put("checklist", "whole_megatron_json",
        json.dumps({"num_layers": 2, "hidden_size": 64, "swiglu": True, "lr": 1e-3,
                    "train_samples": 100, "global_batch_size": 4, "vocab_size": 500}))
    put("checklist", "whole_static",
        "runner_config: {batch_size: 2}\n"
        "optimizer: {type: AdamW, betas: [0.9, 0.95], eps: 1.e-8, weight_decay: 0.1}\n"
        "lr_schedule: {type: CosineWithWarmUpLR, learning_rate: 1.e-3, warmup_ratio: 0.1, total_steps: 20}\n"
        "runner_wrapper: {use_clip_grad: True, max_grad_norm: 0.5}\n"
        "parallel_config: {data_parallel: 2, pipeline_stage: 2, micro_batch_num: 4}\n"
        "moe_config: {expert_num: 4, capacity_factor: 1.5, enable_sdrop: True}\n"
        "model: {model_config: {type: LlamaConfig, num_layers: 2, hidden_size: 64, num_heads: 4,\n"
        "  multiple_of: 32, ffn_dim_multiplier: 1.3, compute_dtype: bfloat16, eos_token_id: 2}}\n")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    checkpoint = pathlib.Path(sys.argv[1])
    write_tensors()
    write_ckpts()
    write_manifests()
    write_states(checkpoint)
    write_hf_configs(checkpoint)
    write_examples()
    write_adapter_configs()
    write_curves()
    write_sides()


if __name__ == "__main__":
    main()
