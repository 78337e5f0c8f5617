// Apertus. Sources: ApertusConfig and its model in transformers; llama.cpp's architecture
// `apertus`.
#include "interop/architectures/common_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture apertus();

namespace {

// Of the activation (xielu in parallel_core/transformer/activation.h), in each layer.
constexpr double kBeta = 0.5;
constexpr double kEpsilon = -1e-6;
Value in_each_layer(const AllConfig& config, double value) {
  return Value::List(static_cast<size_t>(config.model_config.num_layers), Value(value));
}
Value betas(const AllConfig& config) { return in_each_layer(config, kBeta); }
Value epsilons(const AllConfig& config) { return in_each_layer(config, kEpsilon); }

}  // namespace

Architecture apertus() {
  static const TensorNames kNames = [] {
    TensorNames names = llama_names_with({{"attention_norm.", "attention_layernorm."},
                                          {"ffn_norm.", "feedforward_layernorm."},
                                          {"feed_forward.alpha_p.weight", "mlp.act_fn.alpha_p"},
                                          {"feed_forward.alpha_n.weight", "mlp.act_fn.alpha_n"}},
                                         {}, {});
    names.fixed_numbers = {{"mlp.act_fn.beta", kBeta}, {"mlp.act_fn.eps", kEpsilon}};
    return names;
  }();
  GgufTables gguf = llama_gguf_without_gate("apertus");
  gguf.scalings = {"yarn", "llama3", "longrope"};
  gguf.lists = {{"feed_forward.alpha_p.", "xielu.alpha_p"},
                {"feed_forward.alpha_n.", "xielu.alpha_n"}};
  gguf.keys.push_back({.key = "xielu.beta", .made = betas, .whole = true});
  gguf.keys.push_back({.key = "xielu.eps", .made = epsilons, .whole = true});
  gguf.limits = own_head_in_gguf();
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
      .gguf = gguf,
  };
}

}  // namespace tapestry::architectures
