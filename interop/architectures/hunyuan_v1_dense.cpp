// Hunyuan dense. Sources: HunYuanDenseV1Config and its model in transformers; llama.cpp's
// architecture `hunyuan-dense`.
#include "interop/architectures/common_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture hunyuan_v1_dense();

Architecture hunyuan_v1_dense() {
  static const TensorNames kNames =
      llama_names_with({{"attention.q_norm.", "self_attn.query_layernorm."},
                        {"attention.k_norm.", "self_attn.key_layernorm."}},
                       {}, {});
  GgufTables gguf = llama_gguf("hunyuan-dense");
  gguf.limits = joined(only("qkv_has_bias", false, "use False"), no_output_bias_in_gguf());
  return {
      .model_type = "hunyuan_v1_dense",
      .title = "Hunyuan dense",
      .classes = {"HunYuanDenseV1ForCausalLM", "HunYuanDenseV1Model"},
      .score_class = "HunYuanDenseV1ForSequenceClassification",
      .token_ids = {.bos = 1, .eos = {2}, .pad = 0},
      .rules =
          joined(size("vocab_size", "vocab_size", 290943), size("hidden_size", "hidden_size", 4096),
                 size("intermediate_size", "ffn_hidden_size", 11008),
                 size("num_hidden_layers", "num_layers", 32), heads({.heads = 32}),
                 size("max_position_embeddings", "max_position_embeddings", 2048),
                 rotation(10000.0, {.alpha = true}), fixed("normalization", "RMSNorm"),
                 number("rms_norm_eps", "norm_epsilon", 1e-5), gated_silu(),
                 flag("attention_bias", {"qkv_has_bias", "out_proj_has_bias"}, false),
                 fixed("mlp_has_bias", false), no_window(), norms_of_blocks({.qk = true}),
                 fixed("qk_layernorm_after_rotary", true),
                 number("initializer_range", "init_method_std", 0.02),
                 number("attention_dropout", "attention_dropout", 0.0), dense(),
                 written("use_cache", true)),
      .names = &kNames,
      .gguf = gguf,
  };
}

}  // namespace tapestry::architectures
