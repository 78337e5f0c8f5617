// Command R7B, Command A. Sources: Cohere2Config and its model in transformers; llama.cpp's
// architecture `cohere2`.
#include "interop/architectures/common_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture cohere2();

Architecture cohere2() {
  GgufTables gguf = llama_gguf("cohere2");
  use_layer_norm(gguf);
  add_window(gguf);
  gguf.keys.push_back({"logit_scale", "logit_multiplier"});
  gguf.limits =
      joined(windows_in_gguf(4), no_output_bias_in_gguf(), only("qkv_has_bias", false, "use False"),
             only("untie_embeddings_and_output_weights", false,
                  "llama.cpp uses the table of embeddings: use False"));
  return {
      .model_type = "cohere2",
      .title = "Command R7B, Command A",
      .classes = {"Cohere2ForCausalLM", "Cohere2Model"},
      .token_ids = {.bos = 5, .eos = {255001}, .pad = 0},
      .tied = true,
      .rules = joined(
          size("vocab_size", "vocab_size", 256000), size("hidden_size", "hidden_size", 8192),
          size("intermediate_size", "ffn_hidden_size", 22528),
          size("num_hidden_layers", "num_layers", 40), heads({.heads = 64, .fill_width = true}),
          size("max_position_embeddings", "max_position_embeddings", 8192),
          rotation(10000.0, {.pairs = true}), fixed("normalization", "LayerNorm"),
          number("layer_norm_eps", "norm_epsilon", 1e-5), fixed("norm_has_bias", false),
          gated_silu(), flag("attention_bias", {"qkv_has_bias", "out_proj_has_bias"}, false),
          fixed("mlp_has_bias", false),
          windows({.kind = Windows::Kind::kByList,
                   .by_default = 4096,
                   .period = 4,
                   .rotates_sliding_alone = true}),
          norms_of_blocks({.placement = "parallel_one_norm"}),
          number("logit_scale", "logit_multiplier", 0.0625),
          number("initializer_range", "init_method_std", 0.02),
          number("attention_dropout", "attention_dropout", 0.0), dense(),
          written("use_cache", true)),
      .names = &llama_names(),
      .gguf = gguf,
  };
}

}  // namespace tapestry::architectures
