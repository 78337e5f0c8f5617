// GLM-4-0414. Sources: Glm4Config and its model in transformers; llama.cpp's architecture `glm4`.
#include "interop/architectures/common_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture glm4();

Architecture glm4() {
  static const TensorNames kNames =
      llama_names_with({{"attention_post_norm.", "post_self_attn_layernorm."},
                        {"ffn_post_norm.", "post_mlp_layernorm."},
                        {"feed_forward.w_gate.", "mlp.gate_up_proj."},
                        {"feed_forward.w_up.", "mlp.gate_up_proj."}},
                       {}, {});
  GgufTables gguf = llama_gguf("glm4");
  gguf.layer.push_back({"attention_post_norm.", "post_attention_norm."});
  gguf.layer.push_back({"ffn_post_norm.", "post_ffw_norm."});
  rename(gguf, "feed_forward.w_gate.", "ffn_up.");
  return {
      .model_type = "glm4",
      .title = "GLM-4-0414",
      .classes = {"Glm4ForCausalLM", "Glm4Model"},
      .score_class = "Glm4ForSequenceClassification",
      .token_ids = {.bos = {}, .eos = {151329, 151336, 151338}, .pad = 151329},
      .rules = joined(
          size("vocab_size", "vocab_size", 151552), size("hidden_size", "hidden_size", 4096),
          size("intermediate_size", "ffn_hidden_size", 13696),
          size("num_hidden_layers", "num_layers", 40),
          heads({.heads = 32, .groups = 2, .head_dim = 128}),
          size("max_position_embeddings", "max_position_embeddings", 131072),
          rotation(10000.0, {.share = 0.5, .pairs = true}), fixed("normalization", "RMSNorm"),
          number("rms_norm_eps", "norm_epsilon", 1.5625e-7), gated_silu(),
          flag("attention_bias", {"qkv_has_bias"}, true), fixed("out_proj_has_bias", false),
          fixed("mlp_has_bias", false), no_window(), norms_of_blocks({.placement = "sandwich"}),
          number("initializer_range", "init_method_std", 0.02),
          number("attention_dropout", "attention_dropout", 0.0), dense(),
          written("use_cache", true)),
      .names = &kNames,
      .gguf = gguf,
  };
}

}  // namespace tapestry::architectures
