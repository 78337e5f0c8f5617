// Llama. Sources: LlamaConfig and its model in transformers; llama.cpp's architecture `llama`.
#include "interop/architectures/common_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture llama();

Architecture llama() {
  GgufTables gguf = llama_gguf("llama");
  gguf.paired = true;
  // Rows of a model that turns pairs stay as they are.
  gguf.also = {"model_config.rotary_config.rotary_interleaved"};
  gguf.scalings = {"yarn", "llama3", "longrope"};
  return {
      .model_type = "llama",
      .title = "Llama 1 to 3, and models of its form",
      .implied = true,
      .classes = {"LlamaForCausalLM", "LLaMAForCausalLM", "LlamaModel"},
      .score_class = "LlamaForSequenceClassification",
      .token_ids = {.bos = 1, .eos = {2}, .pad = {}},
      .rules = joined(
          size("vocab_size", "vocab_size", 32000), size("hidden_size", "hidden_size", 4096),
          size("intermediate_size", "ffn_hidden_size", 11008),
          size("num_hidden_layers", "num_layers", 32), heads({.heads = 32}),
          size("max_position_embeddings", "max_position_embeddings", 2048), rotation(10000.0),
          fixed("normalization", "RMSNorm"), number("rms_norm_eps", "norm_epsilon", 1e-6),
          gated_silu(), flag("attention_bias", {"qkv_has_bias", "out_proj_has_bias"}, false),
          flag("mlp_bias", {"mlp_has_bias"}, false), no_window(), norms_of_blocks(),
          number("initializer_range", "init_method_std", 0.02),
          number("attention_dropout", "attention_dropout", 0.0), dense(),
          written("use_cache", true), written("pretraining_tp", 1)),
      .names = &llama_names(),
      .gguf = gguf,
  };
}

}  // namespace tapestry::architectures
