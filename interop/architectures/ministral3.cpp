// Ministral 3. Sources: Ministral3Config and its model in transformers; llama.cpp's architecture
// `mistral3`.
#include "interop/architectures/common_tables.h"
#include "interop/architectures/gguf_scaling.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture ministral3();

namespace {

// Over the length that yarn's key says.
Value temperature_of(const AllConfig& config) {
  const double beta = config.model_config.query_temperature_beta;
  return beta > 0 ? Value(beta) : Value();
}
void take_temperature(const Value& value, AllConfig& config) {
  set_value(config, "query_temperature_beta", value.is_null() ? Value(0.0) : value);
}

}  // namespace

Architecture ministral3() {
  GgufTables gguf = llama_gguf("mistral3");
  gguf.paired = true;
  gguf.scalings = {"yarn", "llama3"};
  add_yarn_ends(gguf);
  gguf.keys.push_back(
      {.key = "attention.temperature_scale", .made = temperature_of, .back = take_temperature});
  gguf.limits = no_window_in_gguf();
  return {
      .model_type = "ministral3",
      .title = "Ministral 3",
      .classes = {"Ministral3ForCausalLM", "Ministral3Model"},
      .score_class = "Ministral3ForSequenceClassification",
      .token_ids = {.bos = 1, .eos = {2}, .pad = 11},
      .rules = joined(
          size("vocab_size", "vocab_size", 131072), size("hidden_size", "hidden_size", 4096),
          size("intermediate_size", "ffn_hidden_size", 14336),
          size("num_hidden_layers", "num_layers", 34),
          heads({.heads = 32, .groups = 8, .head_dim = 128}),
          size("max_position_embeddings", "max_position_embeddings", 262144),
          rotation(1e6, {.temperature = true}), fixed("normalization", "RMSNorm"),
          number("rms_norm_eps", "norm_epsilon", 1e-5), gated_silu(), fixed("qkv_has_bias", false),
          fixed("out_proj_has_bias", false), fixed("mlp_has_bias", false), window(std::nullopt),
          norms_of_blocks(), number("initializer_range", "init_method_std", 0.02),
          number("attention_dropout", "attention_dropout", 0.0), dense(),
          written("use_cache", true)),
      .names = &llama_names(),
      .gguf = gguf,
  };
}

}  // namespace tapestry::architectures
