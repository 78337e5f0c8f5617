// Apertus. Sources: ApertusConfig and its model in transformers; llama.cpp's architecture
// `apertus`.
#include "interop/architectures/common_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture apertus();

Architecture apertus() {
  static const TensorNames kNames = [] {
    TensorNames names = llama_names_with({{"attention_norm.", "attention_layernorm."},
                                          {"ffn_norm.", "feedforward_layernorm."},
                                          {"feed_forward.alpha_p.weight", "mlp.act_fn.alpha_p"},
                                          {"feed_forward.alpha_n.weight", "mlp.act_fn.alpha_n"}},
                                         {}, {});
    // As xielu in parallel_core/transformer/activation.h has them.
    names.fixed_numbers = {{"mlp.act_fn.beta", 0.5}, {"mlp.act_fn.eps", -1e-6}};
    return names;
  }();
  return {
      .model_type = "apertus",
      .title = "Apertus",
      .classes = {"ApertusForCausalLM", "ApertusModel"},
      .token_ids = {.bos = 1, .eos = {2}, .pad = 3},
      .rules = joined(
          size("vocab_size", "vocab_size", 131072), size("hidden_size", "hidden_size", 4096),
          size("intermediate_size", "ffn_hidden_size", 14336),
          size("num_hidden_layers", "num_layers", 32), heads({.heads = 32, .fill_width = true}),
          size("max_position_embeddings", "max_position_embeddings", 65536), rotation(1.2e7),
          fixed("normalization", "RMSNorm"), number("rms_norm_eps", "norm_epsilon", 1e-5),
          activation("hidden_act", "xielu", {{"xielu", "xielu"}}),
          flag("attention_bias", {"qkv_has_bias", "out_proj_has_bias"}, false),
          fixed("mlp_has_bias", false), no_window(), norms_of_blocks({.qk = true}),
          number("initializer_range", "init_method_std", 0.02),
          number("attention_dropout", "attention_dropout", 0.0), dense(),
          written("use_cache", true)),
      .names = &kNames,
  };
}

}  // namespace tapestry::architectures
