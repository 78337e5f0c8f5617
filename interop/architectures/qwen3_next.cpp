// Qwen3-Next. Sources: Qwen3NextConfig and its model in transformers.
#include "interop/architectures/common_tables.h"
#include "interop/architectures/delta_net_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture qwen3_next();

Architecture qwen3_next() {
  static const TensorNames kNames = qwen3_next_names();
  return {
      .model_type = "qwen3_next",
      .title = "Qwen3-Next (80B-A3B), Qwen3-Coder-Next",
      .classes = {"Qwen3NextForCausalLM", "Qwen3NextModel"},
      .score_class = "Qwen3NextForSequenceClassification",
      .rules = joined(
          size("vocab_size", "vocab_size", 151936), size("hidden_size", "hidden_size", 2048),
          size("intermediate_size", "ffn_hidden_size", 5632),
          size("num_hidden_layers", "num_layers", 48),
          heads({.heads = 16, .groups = 2, .head_dim = 256}),
          size("max_position_embeddings", "max_position_embeddings", 32768),
          rotation(10000.0, {.share = 0.25}), fixed("normalization", "RMSNorm"),
          number("rms_norm_eps", "norm_epsilon", 1e-6), gated_silu(),
          flag("attention_bias", {"qkv_has_bias", "out_proj_has_bias"}, false),
          fixed("mlp_has_bias", false), fixed("attention_output_gate", true),
          mixer_layers({.kind = "linear_attention",
                        .words = {"linear_attention"},
                        .period = 4,
                        .period_member = "full_attention_interval"}),
          delta_net_sizes(), norms_of_blocks({.qk = true, .zero_centered = true}),
          number("initializer_range", "init_method_std", 0.02),
          number("attention_dropout", "attention_dropout", 0.0), experts("num_experts", 512, 10),
          expert_width("moe_intermediate_size", 512),
          shared_expert("shared_expert_intermediate_size", 512), gates_by_norm_topk_prob(true),
          sparse_layers(), balance_loss(), written("use_cache", true)),
      .names = &kNames,
      .no_gguf = "llama.cpp's form of these layers is not written yet",
  };
}

}  // namespace tapestry::architectures
