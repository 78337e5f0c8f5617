#include "interop/export/gguf_model.h"

#include "autograd/tensor/error.h"
#include "interop/architectures/hf_names.h"
#include "parallel_core/transformer/rotary_frequencies.h"

namespace tapestry {
namespace {

bool has_rms_norm(const TransformerConfig& c) {
  return c.normalization == "RMSNorm" || c.normalization == "FusedRMSNorm";
}

// Collects what cannot be said.
class GgufRefusals {
 public:
  void unless(bool said, const std::string& key, const std::string& value, const std::string& why) {
    if (!said) {
      text_ += concat("\n  model_config.", key, ": is ", value, "; ", why);
    }
  }
  void flag(bool value, bool wanted, const std::string& key, const std::string& why) {
    unless(value == wanted, key, value ? "True" : "False", why);
  }
  void refuse(const std::string& line) { text_ += concat("\n  ", line); }
  void raise() const {
    check<ValueError>(text_.empty(),
                      "GGUF: the architectures that llama.cpp knows (llama, qwen2, qwen3, gpt2) "
                      "cannot say this model. Train one with",
                      text_);
  }

 private:
  std::string text_;
};

void refuse_what_none_says(const TransformerConfig& c, GgufRefusals& refusals) {
  if (c.moe.num_experts > 1) {
    refusals.refuse(concat("moe_config.num_experts: is ", c.moe.num_experts,
                           "; mixtures of experts are not written as GGUF, use 1 or --to hf"));
  }
  refusals.unless(!c.window_size, "window_size", "set",
                  "windows cannot be said: leave it out (null)");
  refusals.flag(c.use_sandwich_norm, false, "use_sandwich_norm", "use False");
  refusals.flag(c.use_final_norm, true, "use_final_norm", "use True");
  refusals.flag(c.apply_residual_connection_post_norm, false, "apply_residual_connection_post_norm",
                "use False");
  refusals.unless(!c.out_hidden_size, "out_hidden_size", "set", "leave it out");
  const bool position =
      c.position_embedding_type == "rope" || c.position_embedding_type == "learned_absolute";
  refusals.unless(position, "position_embedding_type", c.position_embedding_type,
                  "use rope, as Llama, or learned_absolute, as GPT-2");
}

// Why a model with rotation is none of llama, qwen2 and qwen3.
void refuse_llama(const TransformerConfig& c, GgufRefusals& refusals) {
  refusals.unless(has_rms_norm(c), "normalization", c.normalization,
                  "with position_embedding_type rope use RMSNorm");
  refusals.unless(has_gated_mlp(c), "hidden_act", c.hidden_act,
                  "with position_embedding_type rope use swiglu");
  refusals.unless(c.rotary_config.rotary_percent == 1.0, "rotary_config.rotary_percent",
                  concat(c.rotary_config.rotary_percent),
                  "a rotation of some channels alone cannot be said: use 1.0");
  const bool llama = !c.qk_layernorm && c.qkv_has_bias == c.out_proj_has_bias;
  refusals.unless(llama || c.rotary_config.rope_type == "default", "rotary_config.rope_type",
                  c.rotary_config.rope_type,
                  "with qk_layernorm (Qwen3) or biases of q, k and v alone (Qwen2) use default");
  if (c.qk_layernorm) {
    refusals.flag(c.qkv_has_bias, false, "qkv_has_bias", "with qk_layernorm, as Qwen3, use False");
    refusals.flag(c.out_proj_has_bias, false, "out_proj_has_bias",
                  "with qk_layernorm, as Qwen3, use False");
    refusals.flag(c.mlp_has_bias, false, "mlp_has_bias", "with qk_layernorm, as Qwen3, use False");
    refusals.flag(c.rotary_config.rotary_interleaved, false, "rotary_config.rotary_interleaved",
                  "with qk_layernorm, as Qwen3, use False");
  } else if (c.qkv_has_bias && !c.out_proj_has_bias) {
    refusals.flag(c.mlp_has_bias, false, "mlp_has_bias",
                  "with biases of q, k and v alone, as Qwen2, use False");
    refusals.flag(c.rotary_config.rotary_interleaved, false, "rotary_config.rotary_interleaved",
                  "with biases of q, k and v alone, as Qwen2, use False");
  } else {
    refusals.flag(c.out_proj_has_bias, c.qkv_has_bias, "out_proj_has_bias",
                  "a Llama has the four biases of attention or none: use that of qkv_has_bias");
  }
}

// Why a model with learned positions is no gpt2.
void refuse_gpt2(const TransformerConfig& c, GgufRefusals& refusals) {
  refusals.unless(c.normalization == "LayerNorm", "normalization", c.normalization,
                  "with position_embedding_type learned_absolute use LayerNorm");
  refusals.unless(
      c.hidden_act == "fast_gelu", "hidden_act", c.hidden_act,
      c.hidden_act == "gelu"
          ? "llama.cpp computes GPT-2's GELU by its tanh form: use fast_gelu "
            "(activation_function gelu_new in config.json), on which the weights have to be trained"
          : "with position_embedding_type learned_absolute use fast_gelu");
  for (const auto& [key, value] : {std::pair{"qkv_has_bias", c.qkv_has_bias},
                                   {"out_proj_has_bias", c.out_proj_has_bias},
                                   {"mlp_has_bias", c.mlp_has_bias}}) {
    refusals.flag(value, true, key, "a GPT-2 has biases everywhere: use True");
  }
  refusals.flag(c.qk_layernorm, false, "qk_layernorm", "use False");
  refusals.flag(c.untie_embeddings_and_output_weights, false, "untie_embeddings_and_output_weights",
                "a GPT-2 shares its table: use False");
  refusals.unless(c.num_query_groups == c.num_attention_heads, "num_query_groups",
                  concat(c.num_query_groups),
                  concat("a GPT-2 has keys and values for each head: use ", c.num_attention_heads));
  refusals.unless(c.kv_channels.value() * c.num_attention_heads == c.hidden_size, "kv_channels",
                  concat(c.kv_channels.value()),
                  "a GPT-2's heads divide hidden_size: leave it out");
}

std::string gguf_architecture(const TransformerConfig& c) {
  GgufRefusals refusals;
  refuse_what_none_says(c, refusals);
  const bool rope = c.position_embedding_type == "rope";
  if (rope) {
    refuse_llama(c, refusals);
  } else if (c.position_embedding_type == "learned_absolute") {
    refuse_gpt2(c, refusals);
  }
  refusals.raise();
  return !rope                                    ? "gpt2"
         : c.qk_layernorm                         ? "qwen3"
         : c.qkv_has_bias && !c.out_proj_has_bias ? "qwen2"
                                                  : "llama";
}

// Makes the table.
class GgufTable {
 public:
  GgufTable(const TransformerConfig& config, GgufModel& model) : c_(config), model_(model) {}

  void fill() {
    const bool gpt2 = model_.architecture == "gpt2";
    matrix("token_embd", {"tok_embeddings"}, c_.vocab_size, c_.hidden_size, /*bias=*/false);
    if (gpt2) {
      matrix("position_embd", {"pos_embeddings"}, c_.max_position_embeddings.value(),
             c_.hidden_size, /*bias=*/false);
      model_.tensors.back().always_f32 = true;
    }
    for (int64_t layer = 0; layer < c_.num_layers; ++layer) {
      add_layer(layer, gpt2);
    }
    if (c_.rotary_config.rope_type == "llama3") {
      divisors();
    }
    norm("output_norm", "final_norm", c_.hidden_size);
    if (c_.untie_embeddings_and_output_weights) {
      matrix("output", {"lm_head"}, c_.vocab_size, c_.hidden_size, /*bias=*/false);
    }
  }

 private:
  void add_layer(int64_t layer, bool gpt2) {
    const std::string file = concat("blk.", layer, ".");
    const std::string ours = concat("layers.", layer, ".");
    const int64_t queries = c_.num_attention_heads * c_.kv_channels.value();
    const int64_t keys = c_.num_query_groups * c_.kv_channels.value();
    const int64_t hidden = c_.hidden_size;
    const int64_t inner = c_.ffn_hidden_size;
    norm(file + "attn_norm", ours + "attention_norm", hidden);
    if (gpt2) {
      const std::string a = ours + "attention.";
      matrix(file + "attn_qkv", {a + "wq", a + "wk", a + "wv"}, queries + 2 * keys, hidden,
             c_.qkv_has_bias);
    } else {
      const bool paired = model_.architecture == "llama" && !c_.rotary_config.rotary_interleaved;
      matrix(file + "attn_q", {ours + "attention.wq"}, queries, hidden, c_.qkv_has_bias,
             paired ? c_.num_attention_heads : 0);
      matrix(file + "attn_k", {ours + "attention.wk"}, keys, hidden, c_.qkv_has_bias,
             paired ? c_.num_query_groups : 0);
      matrix(file + "attn_v", {ours + "attention.wv"}, keys, hidden, c_.qkv_has_bias);
    }
    if (c_.qk_layernorm) {
      norm(file + "attn_q_norm", ours + "attention.q_norm", c_.kv_channels.value());
      norm(file + "attn_k_norm", ours + "attention.k_norm", c_.kv_channels.value());
    }
    matrix(file + "attn_output", {ours + "attention.wo"}, hidden, queries, c_.out_proj_has_bias);
    norm(file + "ffn_norm", ours + "ffn_norm", hidden);
    if (!gpt2) {
      matrix(file + "ffn_gate", {ours + "feed_forward.w_gate"}, inner, hidden, c_.mlp_has_bias);
    }
    matrix(file + "ffn_up", {ours + "feed_forward.w_up"}, inner, hidden, c_.mlp_has_bias);
    matrix(file + "ffn_down", {ours + "feed_forward.w_down"}, hidden, inner, c_.mlp_has_bias);
  }

  void matrix(const std::string& name,
              const std::vector<std::string>& logical,
              int64_t rows,
              int64_t columns,
              bool bias,
              int64_t paired_heads = 0) {
    GgufTensor weight{.name = name + ".weight", .shape = {rows, columns}};
    GgufTensor vector{.name = name + ".bias", .shape = {rows}, .always_f32 = true};
    weight.paired_heads = vector.paired_heads = paired_heads;
    for (const std::string& part : logical) {
      weight.logical.push_back(part + ".weight");
      vector.logical.push_back(part + ".bias");
    }
    model_.tensors.push_back(std::move(weight));
    if (bias) {
      model_.tensors.push_back(std::move(vector));
    }
  }

  // What each pair's frequency is divided by.
  void divisors() {
    RotaryConfig plain = c_.rotary_config;
    plain.rope_type = "default";
    const std::vector<double> base = rotary_frequencies(plain, c_.kv_channels.value());
    const std::vector<double> used = rotary_frequencies(c_.rotary_config, c_.kv_channels.value());
    GgufTensor tensor{.name = "rope_freqs.weight",
                      .shape = {static_cast<int64_t>(base.size())},
                      .logical = {},
                      .always_f32 = true};
    for (size_t j = 0; j < base.size(); ++j) {
      tensor.values.push_back(static_cast<float>(base[j] / used[j]));
    }
    model_.tensors.push_back(std::move(tensor));
  }

  void norm(const std::string& name, const std::string& logical, int64_t size) {
    for (const char* part : {".weight", ".bias"}) {
      if (part == std::string_view(".weight") || c_.normalization == "LayerNorm") {
        model_.tensors.push_back({.name = name + part,
                                  .shape = {size},
                                  .logical = {logical + part},
                                  .always_f32 = true});
      }
    }
  }

  const TransformerConfig& c_;
  GgufModel& model_;
};

}  // namespace

GgufModel gguf_model(const TransformerConfig& config) {
  GgufModel model{.architecture = gguf_architecture(config), .tensors = {}};
  GgufTable(config, model).fill();
  return model;
}

GgufType type_in_file(const GgufTensor& tensor, GgufType type) {
  if (tensor.always_f32) {
    return GgufType::kF32;
  }
  return gguf_can_hold(type, tensor.shape.back()) ? type : GgufType::kF16;
}

void add_model_metadata(const TransformerConfig& config,
                        const GgufModel& model,
                        const std::string& name,
                        GgufType type,
                        GgufMetadata& metadata) {
  constexpr uint32_t kQuantizationVersion = 2;
  const std::string& arch = model.architecture;
  const auto count = [&](const char* key, int64_t value) {
    check<ValueError>(value >= 0 && value <= std::numeric_limits<uint32_t>::max(), "GGUF: ", arch,
                      ".", key, ": ", value, " does not fit 32 bits");
    metadata.add(concat(arch, ".", key), static_cast<uint32_t>(value));
  };
  const auto number = [&](const char* key, double value) {
    metadata.add(concat(arch, ".", key), static_cast<float>(value));
  };
  metadata.add("general.architecture", arch);
  metadata.add("general.type", "model");
  metadata.add("general.name", name);
  metadata.add("general.file_type", gguf_file_type(type));
  metadata.add("general.quantization_version", kQuantizationVersion);
  count("block_count", config.num_layers);
  count("context_length", config.max_position_embeddings.value());
  count("embedding_length", config.hidden_size);
  count("feed_forward_length", config.ffn_hidden_size);
  count("attention.head_count", config.num_attention_heads);
  count("vocab_size", config.vocab_size);
  if (arch == "gpt2") {
    number("attention.layer_norm_epsilon", config.norm_epsilon);
    return;
  }
  count("attention.head_count_kv", config.num_query_groups);
  number("attention.layer_norm_rms_epsilon", config.norm_epsilon);
  count("attention.key_length", config.kv_channels.value());
  count("attention.value_length", config.kv_channels.value());
  count("rope.dimension_count", config.kv_channels.value());
  number("rope.freq_base", config.rotary_config.rotary_base);
  const double factor = config.rotary_config.seq_len_interpolation_factor.value_or(1.0);
  if (factor != 1.0) {
    metadata.add(arch + ".rope.scaling.type", "linear");
    number("rope.scaling.factor", factor);
  }
}

int64_t pair_rows(int64_t row, int64_t d) {
  const int64_t within = row % d;
  return row - within + within % 2 * (d / 2) + within / 2;
}

}  // namespace tapestry
