// EXAONE 4. Sources: Exaone4Config and its model in transformers; llama.cpp's architecture
// `exaone4`.
#include "interop/architectures/common_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture exaone4();

Architecture exaone4() {
  static const TensorNames kNames =
      llama_names_with({{"attention_post_norm.", "post_attention_layernorm."},
                        {"ffn_post_norm.", "post_feedforward_layernorm."}},
                       {}, {});
  GgufTables gguf = llama_gguf("exaone4");
  add_norms_of_outputs(gguf);
  gguf.scalings = {"yarn", "llama3"};
  // A window of any size decides which layers are rotated.
  gguf.limits = {only("window_size", Value(), "windows cannot be said: leave it out")};
  return {
      .model_type = "exaone4",
      .title = "EXAONE 4",
      .classes = {"Exaone4ForCausalLM", "Exaone4Model"},
      .score_class = "Exaone4ForSequenceClassification",
      .token_ids = {.bos = 0, .eos = {2}, .pad = 1},
      .rules = joined(
          size("vocab_size", "vocab_size", 102400), size("hidden_size", "hidden_size", 4096),
          size("intermediate_size", "ffn_hidden_size", 16384),
          size("num_hidden_layers", "num_layers", 32), heads({.heads = 32}),
          size("max_position_embeddings", "max_position_embeddings", 2048), rotation(10000.0),
          fixed("normalization", "RMSNorm"), number("rms_norm_eps", "norm_epsilon", 1e-5),
          gated_silu(), fixed("qkv_has_bias", false), fixed("out_proj_has_bias", false),
          fixed("mlp_has_bias", false),
          windows({.kind = Windows::Kind::kByList,
                   .by_default = 4096,
                   .period = 4,
                   .rotates_sliding_alone = true}),
          norms_of_blocks({.qk = true, .placement = "post"}),
          number("initializer_range", "init_method_std", 0.02),
          number("attention_dropout", "attention_dropout", 0.0), dense(),
          written("use_cache", true)),
      .names = &kNames,
      .gguf = gguf,
  };
}

}  // namespace tapestry::architectures
