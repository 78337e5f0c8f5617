// Qwen2 and Qwen2.5. Sources: Qwen2Config and its model in transformers; llama.cpp's architecture
// `qwen2`.
#include "interop/architectures/common_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture qwen2();

Architecture qwen2() {
  GgufTables gguf = llama_gguf("qwen2");
  gguf.limits = no_window_in_gguf();
  return {
      .model_type = "qwen2",
      .title = "Qwen2, Qwen2.5",
      .implied = true,
      .classes = {"Qwen2ForCausalLM", "Qwen2Model"},
      .score_class = "Qwen2ForSequenceClassification",
      .rules = joined(
          size("vocab_size", "vocab_size", 151936), size("hidden_size", "hidden_size", 4096),
          size("intermediate_size", "ffn_hidden_size", 22016),
          size("num_hidden_layers", "num_layers", 32), heads({.heads = 32}),
          size("max_position_embeddings", "max_position_embeddings", 32768), rotation(10000.0),
          fixed("normalization", "RMSNorm"), number("rms_norm_eps", "norm_epsilon", 1e-6),
          gated_silu(), fixed("qkv_has_bias", true), fixed("out_proj_has_bias", false),
          fixed("mlp_has_bias", false), switched_window(), norms_of_blocks(),
          number("initializer_range", "init_method_std", 0.02),
          number("attention_dropout", "attention_dropout", 0.0), dense(),
          written("use_cache", true)),
      .names = &llama_names(),
      .gguf = gguf,
  };
}

}  // namespace tapestry::architectures
