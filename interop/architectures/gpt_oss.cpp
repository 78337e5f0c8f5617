// GPT-OSS. Sources: GptOssConfig and its model in transformers; llama.cpp's architecture `gpt-oss`.
#include "interop/architectures/common_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture gpt_oss();

namespace {

// These models' ramp has no whole ends, which a file cannot say.
void keep_ends_of_ramp(const Value& /*value*/, AllConfig& config) {
  RotaryConfig& rotary = config.model_config.rotary_config;
  rotary.truncate = rotary.rope_type != "yarn";
}
Value nothing(const AllConfig& /*config*/) { return {}; }

}  // namespace

Architecture gpt_oss() {
  static const TensorNames kNames = [] {
    TensorNames names = llama_names_with(
        {{"moe.router.", "mlp.router."}, {"attention.sinks.weight", "self_attn.sinks"}},
        "mlp.experts.",
        {{"w_gate.weight", "gate_up_proj"},
         {"w_up.weight", "gate_up_proj"},
         {"w_down.weight", "down_proj"},
         {"w_gate.bias", "gate_up_proj_bias"},
         {"w_up.bias", "gate_up_proj_bias"},
         {"w_down.bias", "down_proj_bias"}});
    names.stacked = true;
    return names;
  }();
  constexpr int64_t kWidth = 2880;
  GgufTables gguf = llama_gguf("gpt-oss");
  add_experts(gguf);
  add_window(gguf);
  gguf.layer.push_back({"attention.sinks.", "attn_sinks."});
  // The norm before the MLP has this name, although it stands before it.
  rename(gguf, "ffn_norm.", "post_attention_norm.");
  gguf.keys.push_back({.key = "rope.scaling.truncate", .made = nothing, .back = keep_ends_of_ramp});
  gguf.limits =
      joined(windows_in_gguf(2), own_head_in_gguf(), only("qkv_has_bias", true, "use True"),
             only("swiglu_limit", 7.0, "use 7"), only("swiglu_alpha", 1.702, "use 1.702"));
  return {
      .model_type = "gpt_oss",
      .title = "GPT-OSS",
      .classes = {"GptOssForCausalLM", "GptOssModel"},
      .score_class = "GptOssForSequenceClassification",
      .token_ids = {.bos = {}, .eos = {200002}, .pad = 199999},
      .rules = joined(
          size("vocab_size", "vocab_size", 201088), size("hidden_size", "hidden_size", kWidth),
          size("intermediate_size", "ffn_hidden_size", kWidth),
          size("num_hidden_layers", "num_layers", 36),
          heads({.heads = 64, .groups = 8, .head_dim = 64}),
          size("max_position_embeddings", "max_position_embeddings", 131072), rotation(150000.0),
          fixed("normalization", "RMSNorm"), number("rms_norm_eps", "norm_epsilon", 1e-5),
          fixed("hidden_act", "clamped_swiglu"), fixed("gated_linear_unit", true),
          number("swiglu_limit", "swiglu_limit", 7.0),
          number("swiglu_alpha", "swiglu_alpha", 1.702), written("hidden_act", "silu"),
          flag("attention_bias", {"qkv_has_bias", "out_proj_has_bias"}, true),
          fixed("mlp_has_bias", true), fixed("attention_sinks", true),
          windows({.kind = Windows::Kind::kByList, .by_default = 128, .period = 2}),
          norms_of_blocks(), number("initializer_range", "init_method_std", 0.02),
          number("attention_dropout", "attention_dropout", 0.0),
          experts("num_local_experts", 128, 4), expert_width("intermediate_size", kWidth),
          experts_everywhere(), no_shared_expert(), normalised_gates(),
          fixed("moe_config.moe_router_has_bias", true), balance_loss(), no_dense_width(),
          written("use_cache", true)),
      .names = &kNames,
      .gguf = gguf,
  };
}

}  // namespace tapestry::architectures
