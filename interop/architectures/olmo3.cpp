// OLMo 3. Sources: Olmo3Config and its model in transformers; llama.cpp's architecture `olmo2`.
#include "interop/architectures/common_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture olmo3();

namespace {

Value layers_with_window(const AllConfig& config) {
  Value::List out;
  for (int64_t layer = 0; layer < config.model_config.num_layers; ++layer) {
    out.emplace_back(has_window(config.model_config, layer));
  }
  return out;
}

void take_layers_with_window(const Value& value, AllConfig& config) {
  const auto* given = std::get_if<Value::List>(&value.data);
  if (given == nullptr) {
    return;
  }
  Value::List types;
  for (const Value& one : *given) {
    types.emplace_back(std::string(one == Value(true) ? "sliding_attention" : "full_attention"));
  }
  set_value(config, "layer_types", types);
  // One base for all layers, and no scaling where there is a window.
  RotaryConfig& rotary = config.model_config.rotary_config;
  rotary.sliding_rotary_base = rotary.rotary_base;
}

// llama.cpp has one base for all layers of this architecture.
class OneBase final : public Rule {
 public:
  void object(const AllConfig& config, std::vector<Objection>& out) const override {
    const RotaryConfig& rotary = config.model_config.rotary_config;
    object_unless(config, "rotary_config.sliding_rotary_base", Value(rotary.rotary_base), out,
                  "use that of rotary_base");
  }
};

}  // namespace

Architecture olmo3() {
  static const TensorNames kNames =
      llama_names_with({{"attention_post_norm.", "post_attention_layernorm."},
                        {"ffn_post_norm.", "post_feedforward_layernorm."}},
                       {}, {});
  GgufTables gguf = llama_gguf("olmo2");
  add_norms_of_outputs(gguf);
  add_window(gguf);
  gguf.keys.push_back({.key = "attention.sliding_window_pattern",
                       .made = layers_with_window,
                       .back = take_layers_with_window});
  gguf.limits = joined(own_head_in_gguf(), std::make_shared<OneBase>());
  return {
      .model_type = "olmo3",
      .title = "OLMo 3",
      .classes = {"Olmo3ForCausalLM", "Olmo3Model"},
      .token_ids = {.bos = {}, .eos = {50279}, .pad = 1},
      .rules = joined(
          size("vocab_size", "vocab_size", 50304), size("hidden_size", "hidden_size", 4096),
          size("intermediate_size", "ffn_hidden_size", 11008),
          size("num_hidden_layers", "num_layers", 32), heads({.heads = 32, .fill_width = true}),
          size("max_position_embeddings", "max_position_embeddings", 2048),
          rotation(500000.0, {.sliding_theta = 500000.0}), fixed("normalization", "RMSNorm"),
          number("rms_norm_eps", "norm_epsilon", 1e-5), gated_silu(),
          flag("attention_bias", {"qkv_has_bias", "out_proj_has_bias"}, false),
          fixed("mlp_has_bias", false),
          windows({.kind = Windows::Kind::kByList, .by_default = 4096, .period = 4}),
          norms_of_blocks({.qk = true, .qk_scope = "projection", .placement = "post"}),
          number("initializer_range", "init_method_std", 0.02),
          number("attention_dropout", "attention_dropout", 0.0), dense(),
          written("use_cache", true)),
      .names = &kNames,
      .gguf = gguf,
  };
}

}  // namespace tapestry::architectures
