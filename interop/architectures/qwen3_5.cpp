// Qwen3.5 and 3.6, the part that reads text. Sources: Qwen3_5TextConfig and its model in
// transformers.
#include "interop/architectures/common_tables.h"
#include "interop/architectures/delta_net_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture qwen3_5();

Architecture qwen3_5() {
  static const TensorNames kNames = qwen3_5_names({}, false);
  return {
      .model_type = "qwen3_5_text",
      .title = "Qwen3.5, Qwen3.6",
      .classes = {"Qwen3_5ForCausalLM", "Qwen3_5TextModel"},
      .rules =
          joined(size("vocab_size", "vocab_size", 248320), size("hidden_size", "hidden_size", 4096),
                 size("intermediate_size", "ffn_hidden_size", 12288),
                 size("num_hidden_layers", "num_layers", 32),
                 heads({.heads = 16, .groups = 4, .head_dim = 256}),
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
                 number("attention_dropout", "attention_dropout", 0.0), dense(),
                 written("use_cache", true)),
      .names = &kNames,
      .no_gguf = "the order of heads in llama.cpp's form of these layers is not written yet",
  };
}

}  // namespace tapestry::architectures
