// Mistral. Sources: MistralConfig and its model in transformers; to llama.cpp it is a Llama.
#include "interop/architectures/common_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture mistral();

Architecture mistral() {
  GgufTables gguf = llama_gguf("llama");
  gguf.paired = true;
  gguf.also = {"model_config.rotary_config.rotary_interleaved"};
  gguf.scalings = {"yarn", "llama3", "longrope"};
  gguf.limits = no_window_in_gguf();
  return {
      .model_type = "mistral",
      .title = "Mistral",
      .implied = true,
      .classes = {"MistralForCausalLM", "MistralModel"},
      .score_class = "MistralForSequenceClassification",
      .token_ids = {.bos = 1, .eos = {2}, .pad = {}},
      .rules = joined(
          size("vocab_size", "vocab_size", 32000), size("hidden_size", "hidden_size", 4096),
          size("intermediate_size", "ffn_hidden_size", 14336),
          size("num_hidden_layers", "num_layers", 32), heads({.heads = 32, .groups = 8}),
          size("max_position_embeddings", "max_position_embeddings", 131072), rotation(10000.0),
          fixed("normalization", "RMSNorm"), number("rms_norm_eps", "norm_epsilon", 1e-6),
          gated_silu(), fixed("qkv_has_bias", false), fixed("out_proj_has_bias", false),
          fixed("mlp_has_bias", false), window(4096), norms_of_blocks(),
          number("initializer_range", "init_method_std", 0.02),
          number("attention_dropout", "attention_dropout", 0.0), dense(),
          written("use_cache", true)),
      .names = &llama_names(),
      .gguf = gguf,
  };
}

}  // namespace tapestry::architectures
