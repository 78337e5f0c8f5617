// Qwen3, dense. Sources: Qwen3Config and its model in transformers; llama.cpp's architecture
// `qwen3`.
#include "interop/architectures/common_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture qwen3();

Architecture qwen3() {
  GgufTables gguf = llama_gguf("qwen3");
  gguf.limits = joined(no_window_in_gguf(), only("qkv_has_bias", false, "use False"),
                       only("out_proj_has_bias", false, "use False"));
  return {
      .model_type = "qwen3",
      .title = "Qwen3, dense",
      .implied = true,
      .classes = {"Qwen3ForCausalLM", "Qwen3Model"},
      .score_class = "Qwen3ForSequenceClassification",
      .rules = joined(
          size("vocab_size", "vocab_size", 151936), size("hidden_size", "hidden_size", 4096),
          size("intermediate_size", "ffn_hidden_size", 22016),
          size("num_hidden_layers", "num_layers", 32), heads({.heads = 32, .head_dim = 128}),
          size("max_position_embeddings", "max_position_embeddings", 32768), rotation(10000.0),
          fixed("normalization", "RMSNorm"), number("rms_norm_eps", "norm_epsilon", 1e-6),
          gated_silu(), flag("attention_bias", {"qkv_has_bias", "out_proj_has_bias"}, false),
          fixed("mlp_has_bias", false), switched_window(), norms_of_blocks({.qk = true}),
          number("initializer_range", "init_method_std", 0.02),
          number("attention_dropout", "attention_dropout", 0.0), dense(),
          written("use_cache", true)),
      .names = &llama_names(),
      .gguf = gguf,
  };
}

}  // namespace tapestry::architectures
