// Arcee Foundation Model. Sources: ArceeConfig and its model in transformers; llama.cpp's
// architecture `arcee`.
#include "interop/architectures/common_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture arcee();

Architecture arcee() {
  GgufTables gguf = llama_gguf_without_gate("arcee");
  gguf.paired = true;
  gguf.scalings = {"yarn", "llama3"};
  gguf.limits = joined(only("qkv_has_bias", false, "use False"), no_output_bias_in_gguf());
  return {
      .model_type = "arcee",
      .title = "Arcee AFM",
      .classes = {"ArceeForCausalLM", "ArceeModel"},
      .score_class = "ArceeForSequenceClassification",
      .token_ids = {.bos = 128000, .eos = {128001}, .pad = {}},
      .rules = joined(
          size("vocab_size", "vocab_size", 32000), size("hidden_size", "hidden_size", 2560),
          size("intermediate_size", "ffn_hidden_size", 18432),
          size("num_hidden_layers", "num_layers", 32), heads({.heads = 32}),
          size("max_position_embeddings", "max_position_embeddings", 4096), rotation(10000.0),
          fixed("normalization", "RMSNorm"), number("rms_norm_eps", "norm_epsilon", 1e-5),
          activation("hidden_act", "relu2", {{"relu2", "squared_relu"}}),
          flag("attention_bias", {"qkv_has_bias", "out_proj_has_bias"}, false),
          flag("mlp_bias", {"mlp_has_bias"}, false), no_window(), norms_of_blocks(),
          number("initializer_range", "init_method_std", 0.02),
          number("attention_dropout", "attention_dropout", 0.0), dense(),
          written("use_cache", true)),
      .names = &llama_names(),
      .gguf = gguf,
  };
}

}  // namespace tapestry::architectures
