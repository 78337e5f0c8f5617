// Nemotron-4 and Minitron. Sources: NemotronConfig and its model in transformers; llama.cpp's
// architecture `nemotron`.
#include "interop/architectures/common_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture nemotron();

Architecture nemotron() {
  GgufTables gguf = llama_gguf_without_gate("nemotron");
  use_layer_norm(gguf);
  gguf.limits = joined(only("untie_embeddings_and_output_weights", true,
                            "llama.cpp wants a matrix of its own: use True"));
  return {
      .model_type = "nemotron",
      .title = "Nemotron-4, Minitron",
      .classes = {"NemotronForCausalLM", "NemotronModel"},
      .score_class = "NemotronForSequenceClassification",
      .token_ids = {.bos = 2, .eos = {3}, .pad = {}},
      .rules =
          joined(size("vocab_size", "vocab_size", 256000), size("hidden_size", "hidden_size", 6144),
                 size("intermediate_size", "ffn_hidden_size", 24576),
                 size("num_hidden_layers", "num_layers", 32), heads({.heads = 48}),
                 size("max_position_embeddings", "max_position_embeddings", 4096),
                 rotation(10000.0, {.share = 0.5}), fixed("normalization", "LayerNorm"),
                 number("norm_eps", "norm_epsilon", 1e-5),
                 activation("hidden_act", "relu2", {{"relu2", "squared_relu"}}),
                 flag("attention_bias", {"qkv_has_bias", "out_proj_has_bias"}, false),
                 flag("mlp_bias", {"mlp_has_bias"}, false), no_window(),
                 norms_of_blocks({.zero_centered = true}),
                 number("initializer_range", "init_method_std", 0.0134),
                 number("attention_dropout", "attention_dropout", 0.0), dense(),
                 written("use_cache", true)),
      .names = &llama_names(),
      .gguf = gguf,
  };
}

}  // namespace tapestry::architectures
