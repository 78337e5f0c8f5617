// OLMo 2. Sources: Olmo2Config and its model in transformers; llama.cpp's architecture `olmo2`.
#include "interop/architectures/common_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture olmo2();

Architecture olmo2() {
  static const TensorNames kNames =
      llama_names_with({{"attention_post_norm.", "post_attention_layernorm."},
                        {"ffn_post_norm.", "post_feedforward_layernorm."}},
                       {}, {});
  GgufTables gguf = llama_gguf("olmo2");
  add_norms_of_outputs(gguf);
  gguf.limits = joined(own_head_in_gguf());
  return {
      .model_type = "olmo2",
      .title = "OLMo 2",
      .classes = {"Olmo2ForCausalLM", "Olmo2Model"},
      .token_ids = {.bos = {}, .eos = {50279}, .pad = 1},
      .rules = joined(
          size("vocab_size", "vocab_size", 50304), size("hidden_size", "hidden_size", 4096),
          size("intermediate_size", "ffn_hidden_size", 11008),
          size("num_hidden_layers", "num_layers", 32), heads({.heads = 32, .fill_width = true}),
          size("max_position_embeddings", "max_position_embeddings", 2048), rotation(10000.0),
          fixed("normalization", "RMSNorm"), number("rms_norm_eps", "norm_epsilon", 1e-5),
          gated_silu(), flag("attention_bias", {"qkv_has_bias", "out_proj_has_bias"}, false),
          fixed("mlp_has_bias", false), no_window(),
          norms_of_blocks({.qk = true, .qk_scope = "projection", .placement = "post"}),
          number("initializer_range", "init_method_std", 0.02),
          number("attention_dropout", "attention_dropout", 0.0), dense(),
          written("use_cache", true)),
      .names = &kNames,
      .gguf = gguf,
  };
}

}  // namespace tapestry::architectures
