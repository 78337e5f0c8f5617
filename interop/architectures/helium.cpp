// Helium. Sources: HeliumConfig and its model in transformers. In llama.cpp it is a `llama`.
#include "interop/architectures/common_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture helium();

Architecture helium() {
  return {
      .model_type = "helium",
      .title = "Helium 1",
      .classes = {"HeliumForCausalLM", "HeliumModel"},
      .score_class = "HeliumForSequenceClassification",
      .token_ids = {.bos = 1, .eos = {2}, .pad = 3},
      .rules =
          joined(size("vocab_size", "vocab_size", 48000), size("hidden_size", "hidden_size", 2560),
                 size("intermediate_size", "ffn_hidden_size", 7040),
                 size("num_hidden_layers", "num_layers", 24),
                 heads({.heads = 20, .head_dim = 128, .fill_width = true}),
                 size("max_position_embeddings", "max_position_embeddings", 4096),
                 rotation(100000.0, {.pairs = true}), fixed("normalization", "RMSNorm"),
                 number("rms_norm_eps", "norm_epsilon", 1e-8), gated_silu(),
                 flag("attention_bias", {"qkv_has_bias"}, false), fixed("out_proj_has_bias", false),
                 flag("mlp_bias", {"mlp_has_bias"}, false), no_window(), norms_of_blocks(),
                 number("initializer_range", "init_method_std", 0.02),
                 number("attention_dropout", "attention_dropout", 0.0), dense(),
                 written("use_cache", true)),
      .names = &llama_names(),
  };
}

}  // namespace tapestry::architectures
