// Granite 3. Sources: GraniteConfig and its model in transformers; llama.cpp's architecture
// `granite`.
#include "interop/architectures/common_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture granite();

namespace {

Value logit_divisor(const AllConfig& config) { return 1 / config.model_config.logit_multiplier; }
void take_logit_divisor(const Value& value, AllConfig& config) {
  const bool usable = value.is<double>() && value.as<double>() > 0;
  config.model_config.logit_multiplier = usable ? 1 / value.as<double>() : 1;
}

}  // namespace

Architecture granite() {
  GgufTables gguf = llama_gguf("granite");
  gguf.paired = true;
  gguf.scalings = {"yarn", "llama3"};
  gguf.keys.push_back({"attention.scale", "attention_scale"});
  gguf.keys.push_back({"embedding_scale", "embedding_multiplier"});
  gguf.keys.push_back({"residual_scale", "residual_multiplier"});
  gguf.keys.push_back({.key = "logit_scale", .made = logit_divisor, .back = take_logit_divisor});
  gguf.limits = joined(no_output_bias_in_gguf(), only("qkv_has_bias", false, "use False"));
  return {
      .model_type = "granite",
      .title = "Granite 3",
      .classes = {"GraniteForCausalLM", "GraniteModel"},
      .token_ids = {.bos = 1, .eos = {2}, .pad = {}},
      .rules = joined(
          size("vocab_size", "vocab_size", 32000), size("hidden_size", "hidden_size", 4096),
          size("intermediate_size", "ffn_hidden_size", 11008),
          size("num_hidden_layers", "num_layers", 32), heads({.heads = 32}),
          size("max_position_embeddings", "max_position_embeddings", 2048), rotation(10000.0),
          fixed("normalization", "RMSNorm"), number("rms_norm_eps", "norm_epsilon", 1e-6),
          gated_silu(), flag("attention_bias", {"qkv_has_bias", "out_proj_has_bias"}, false),
          flag("mlp_bias", {"mlp_has_bias"}, false), no_window(), norms_of_blocks(),
          number("embedding_multiplier", "embedding_multiplier", 1.0),
          number("residual_multiplier", "residual_multiplier", 1.0),
          number("attention_multiplier", "attention_scale", 1.0),
          reciprocal("logits_scaling", "logit_multiplier", 1.0),
          number("initializer_range", "init_method_std", 0.02),
          number("attention_dropout", "attention_dropout", 0.0), dense(),
          written("use_cache", true)),
      .names = &llama_names(),
      .gguf = gguf,
  };
}

}  // namespace tapestry::architectures
