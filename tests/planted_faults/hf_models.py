"""Small PyTorch models with the modules and names of Hugging Face's GPT-2, Llama, Qwen3 and Mixtral,
written from their papers and configurations, each with switches that make one thing wrong."""

import math

import torch
from torch import nn

VOCAB, HIDDEN, HEADS, GROUPS, HEAD_SIZE, FFN, SEQ, LAYERS, EXPERTS = 32, 16, 4, 2, 8, 24, 8, 2, 4
EPS = {"gpt2": 1e-5, "llama": 1e-5, "qwen3": 1e-6, "mixtral": 1e-5}
BASE = {"llama": 10000.0, "qwen3": 1e6, "mixtral": 1e6}


def hf_config(name):
    """config.json as transformers writes it."""
    common = {"vocab_size": VOCAB, "torch_dtype": "float32", "transformers_version": "4.44.0"}
    if name == "gpt2":
        return {**common, "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": HIDDEN,
                "n_layer": LAYERS, "n_head": HEADS, "n_inner": FFN, "n_positions": SEQ, "n_ctx": SEQ,
                "activation_function": "gelu_new", "layer_norm_epsilon": EPS[name], "resid_pdrop": 0.0,
                "embd_pdrop": 0.0, "attn_pdrop": 0.0, "tie_word_embeddings": True}
    architecture = {"llama": "Llama", "qwen3": "Qwen3", "mixtral": "Mixtral"}[name]
    config = {**common, "model_type": name, "architectures": [architecture + "ForCausalLM"],
              "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
              "num_key_value_heads": GROUPS, "intermediate_size": FFN, "max_position_embeddings": SEQ,
              "hidden_act": "silu", "rms_norm_eps": EPS[name], "rope_theta": BASE[name],
              "tie_word_embeddings": name == "qwen3", "attention_dropout": 0.0}
    if name == "qwen3":
        config.update(head_dim=HEAD_SIZE, attention_bias=False)
    if name == "llama":
        config.update(attention_bias=False, mlp_bias=False)
    if name == "mixtral":
        config.update(num_local_experts=EXPERTS, num_experts_per_tok=2, router_aux_loss_coef=0.0,
                      sliding_window=None)
    return config


def our_model(name):
    """The same model in the words of our YAML file."""
    lines = {"num_layers": LAYERS, "hidden_size": HIDDEN, "ffn_hidden_size": FFN, "vocab_size": VOCAB,
             "num_attention_heads": HEADS, "seq_length": SEQ, "norm_epsilon": f"{EPS[name]:.1e}"}
    if name == "gpt2":
        lines.update(hidden_act="fast_gelu", max_position_embeddings=SEQ)
        return lines
    lines.update(position_embedding_type="rope", normalization="RMSNorm", hidden_act="swiglu",
                 group_query_attention=True, num_query_groups=GROUPS, qkv_has_bias=False,
                 out_proj_has_bias=False, mlp_has_bias=False,
                 untie_embeddings_and_output_weights=name != "qwen3",
                 rotary_config=f"{{rotary_base: {BASE[name]:.1f}}}")
    if name == "qwen3":
        lines.update(qk_layernorm=True, kv_channels=HEAD_SIZE)
    return lines


def heads(x, count):
    return x.view(x.shape[0], x.shape[1], count, -1).transpose(1, 2)


class Norm(nn.Module):
    def __init__(self, name, size, wrong):
        super().__init__()
        self.eps = wrong.get("norm_eps", EPS[name])
        self.weight = nn.Parameter(torch.ones(size) + 0.1 * torch.randn(size))
        self.bias = nn.Parameter(0.1 * torch.randn(size)) if name == "gpt2" else None

    def forward(self, x):
        if self.bias is not None:
            return nn.functional.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class Linear(nn.Linear):
    def __init__(self, into, out):
        super().__init__(into, out, bias=False)
        self.weight.data = 0.3 * torch.randn(out, into)


class Conv1D(nn.Module):
    """GPT-2's linear layer: the weight is [in, out]."""

    def __init__(self, out, into):
        super().__init__()
        self.weight = nn.Parameter(0.3 * torch.randn(into, out))
        self.bias = nn.Parameter(0.1 * torch.randn(out))

    def forward(self, x):
        return x @ self.weight + self.bias


def attend(q, k, v, wrong):
    if HEADS != k.shape[1]:
        if wrong.get("gqa_order"):
            k, v = (t.repeat(1, HEADS // GROUPS, 1, 1) for t in (k, v))
        else:
            k, v = (t.repeat_interleave(HEADS // GROUPS, 1) for t in (k, v))
    scores = q @ k.transpose(2, 3)
    if not wrong.get("no_scale"):
        scores = scores / math.sqrt(q.shape[-1])
    if not wrong.get("no_causal_mask"):
        later = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    out = scores.softmax(-1) @ v
    return out.transpose(1, 2).reshape(q.shape[0], q.shape[2], -1)


def rotated(x, base, wrong):
    base = wrong.get("rope_base", base)
    half = x.shape[-1] // 2
    at = torch.arange(x.shape[2]) + wrong.get("rope_start", 0)
    angles = at[:, None] / base ** (torch.arange(half) / half)
    if wrong.get("rope_interleaved"):
        cos, sin = angles.cos(), angles.sin()
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    cos, sin = torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


class Attention(nn.Module):
    def __init__(self, name, wrong):
        super().__init__()
        size = HEAD_SIZE if name == "qwen3" else HIDDEN // HEADS
        self.name, self.wrong = name, wrong
        self.q_proj = Linear(HIDDEN, HEADS * size)
        self.k_proj = Linear(HIDDEN, GROUPS * size)
        self.v_proj = Linear(HIDDEN, GROUPS * size)
        self.o_proj = Linear(HEADS * size, HIDDEN)
        if name == "qwen3":
            self.q_norm, self.k_norm = Norm(name, size, wrong), Norm(name, size, wrong)

    def forward(self, x):
        q, k, v = heads(self.q_proj(x), HEADS), heads(self.k_proj(x), GROUPS), heads(self.v_proj(x), GROUPS)
        if self.name == "qwen3":
            q, k = self.q_norm(q), self.k_norm(k)
        if not self.wrong.get("no_rope"):
            q, k = (rotated(t, BASE[self.name], self.wrong) for t in (q, k))
        return self.o_proj(attend(q, k, v, self.wrong))


class Mlp(nn.Module):
    def __init__(self, wrong):
        super().__init__()
        self.wrong = wrong
        self.gate_proj, self.up_proj = Linear(HIDDEN, FFN), Linear(HIDDEN, FFN)
        self.down_proj = Linear(FFN, HIDDEN)

    def forward(self, x):
        act = getattr(nn.functional, self.wrong.get("activation", "silu"))
        gate, up = self.gate_proj(x), self.up_proj(x)
        if self.wrong.get("gate_swapped"):
            gate, up = up, gate
        return self.down_proj(act(gate) * up)


class Expert(nn.Module):
    def __init__(self, wrong):
        super().__init__()
        self.wrong = wrong
        self.w1, self.w2, self.w3 = Linear(HIDDEN, FFN), Linear(FFN, HIDDEN), Linear(HIDDEN, FFN)

    def forward(self, x):
        act = getattr(nn.functional, self.wrong.get("activation", "silu"))
        return self.w2(act(self.w1(x)) * self.w3(x))


class SparseMoe(nn.Module):
    def __init__(self, wrong):
        super().__init__()
        self.wrong = wrong
        self.gate = Linear(HIDDEN, EXPERTS)
        self.experts = nn.ModuleList([Expert(wrong) for _ in range(EXPERTS)])

    def forward(self, x):
        scores = self.gate(x).softmax(-1)
        top, chosen = scores.topk(2, -1)
        if not self.wrong.get("top_k_not_normalised"):
            top = top / top.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            out = out + (top * (chosen == i)).sum(-1, keepdim=True) * expert(x)
        return out


class Layer(nn.Module):
    def __init__(self, name, wrong):
        super().__init__()
        self.wrong = wrong
        self.self_attn = Attention(name, wrong)
        if name == "mixtral":
            self.block_sparse_moe = SparseMoe(wrong)
        else:
            self.mlp = Mlp(wrong)
        self.input_layernorm = Norm(name, HIDDEN, wrong)
        self.post_attention_layernorm = Norm(name, HIDDEN, wrong)

    def forward(self, x):
        attention = self.self_attn(self.input_layernorm(x))
        x = attention if self.wrong.get("no_residual") else x + attention
        mlp = self.mlp if hasattr(self, "mlp") else self.block_sparse_moe
        return x + mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, name, wrong):
        super().__init__()
        self.wrong = wrong
        self.embed_tokens = nn.Embedding(VOCAB, HIDDEN)
        self.embed_tokens.weight.data *= 0.5
        self.layers = nn.ModuleList([Layer(name, wrong) for _ in range(LAYERS)])
        self.norm = Norm(name, HIDDEN, wrong)

    def forward(self, tokens):
        x = self.embed_tokens(tokens)
        if self.wrong.get("embedding_scaled"):
            x = x * math.sqrt(HIDDEN)
        for layer in self.layers:
            x = layer(x)
        return x if self.wrong.get("no_final_norm") else self.norm(x)


class Llama(nn.Module):
    """Llama, Qwen3 and Mixtral."""

    def __init__(self, name, wrong):
        super().__init__()
        self.wrong = wrong
        self.model = Decoder(name, wrong)
        self.lm_head = Linear(HIDDEN, VOCAB)
        if name == "qwen3":
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, tokens):
        return self.lm_head(self.model(tokens))


class Gpt2Attention(nn.Module):
    def __init__(self, wrong):
        super().__init__()
        self.wrong = wrong
        self.c_attn, self.c_proj = Conv1D(3 * HIDDEN, HIDDEN), Conv1D(HIDDEN, HIDDEN)

    def forward(self, x):
        return self.c_proj(attend(*(heads(t, HEADS) for t in self.c_attn(x).split(HIDDEN, 2)), self.wrong))


class Gpt2Mlp(nn.Module):
    def __init__(self, wrong):
        super().__init__()
        self.wrong = wrong
        self.c_fc, self.c_proj = Conv1D(FFN, HIDDEN), Conv1D(HIDDEN, FFN)

    def forward(self, x):
        x = self.c_fc(x)
        activation = self.wrong.get("activation", "gelu_tanh")
        if activation == "gelu_tanh":
            return self.c_proj(nn.functional.gelu(x, approximate="tanh"))
        return self.c_proj(getattr(nn.functional, activation)(x))


class Gpt2Block(nn.Module):
    def __init__(self, wrong):
        super().__init__()
        self.wrong = wrong
        self.ln_1, self.ln_2 = Norm("gpt2", HIDDEN, wrong), Norm("gpt2", HIDDEN, wrong)
        self.attn, self.mlp = Gpt2Attention(wrong), Gpt2Mlp(wrong)

    def forward(self, x):
        attention = self.attn(self.ln_1(x))
        x = attention if self.wrong.get("no_residual") else x + attention
        return x + self.mlp(self.ln_2(x))


class Gpt2Model(nn.Module):
    def __init__(self, wrong):
        super().__init__()
        self.wrong = wrong
        self.wte, self.wpe = nn.Embedding(VOCAB, HIDDEN), nn.Embedding(SEQ, HIDDEN)
        self.wte.weight.data *= 0.5
        self.drop = nn.Dropout(0.0)
        self.h = nn.ModuleList([Gpt2Block(wrong) for _ in range(LAYERS)])
        self.ln_f = Norm("gpt2", HIDDEN, wrong)

    def forward(self, tokens):
        at = torch.arange(tokens.shape[1])
        if self.wrong.get("positions_reversed"):
            at = at.flip(0)
        x = self.drop(self.wte(tokens) + self.wpe(at))
        for block in self.h:
            x = block(x)
        return x if self.wrong.get("no_final_norm") else self.ln_f(x)


class Gpt2(nn.Module):
    def __init__(self, wrong):
        super().__init__()
        self.transformer = Gpt2Model(wrong)
        self.lm_head = nn.Linear(HIDDEN, VOCAB, bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    def forward(self, tokens):
        return self.lm_head(self.transformer(tokens))


def build(name, wrong):
    model = Gpt2(wrong) if name == "gpt2" else Llama(name, wrong)
    if wrong.get("head_untied"):  # the same values, but of its own
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    return model
