// ERNIE 4.5, dense. Sources: Ernie4_5Config and its model in transformers; llama.cpp's architecture
// `ernie4_5`.
#include "interop/architectures/common_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture ernie4_5();

Architecture ernie4_5() {
  GgufTables gguf = llama_gguf("ernie4_5");
  gguf.limits = joined(only("qkv_has_bias", false, "use False"), no_output_bias_in_gguf());
  return {
      .model_type = "ernie4_5",
      .title = "ERNIE 4.5, dense",
      .classes = {"Ernie4_5ForCausalLM", "Ernie4_5Model"},
      .token_ids = {.bos = 1, .eos = {2}, .pad = 0},
      .tied = true,
      .rules = joined(
          size("vocab_size", "vocab_size", 103424), size("hidden_size", "hidden_size", 1024),
          size("intermediate_size", "ffn_hidden_size", 3072),
          size("num_hidden_layers", "num_layers", 18),
          heads({.heads = 16, .groups = 2, .head_dim = 128}),
          size("max_position_embeddings", "max_position_embeddings", 131072),
          rotation(500000.0, {.pairs = true}), fixed("normalization", "RMSNorm"),
          number("rms_norm_eps", "norm_epsilon", 1e-5), gated_silu(),
          flag("use_bias", {"qkv_has_bias", "out_proj_has_bias", "mlp_has_bias"}, false),
          no_window(), norms_of_blocks(), number("initializer_range", "init_method_std", 0.02),
          number("attention_dropout", "attention_dropout", 0.0), dense(),
          written("use_cache", true)),
      .names = &llama_names(),
      .gguf = gguf,
  };
}

}  // namespace tapestry::architectures
