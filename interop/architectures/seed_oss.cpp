// Seed-OSS. Sources: SeedOssConfig and its model in transformers; llama.cpp's architecture
// `seed_oss`.
#include "interop/architectures/common_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture seed_oss();

namespace {

// The type has 0.1 where a file says nothing, and files repeat it. What a run drops it says itself
// (attention_dropout, hidden_dropout).
class Dropouts final : public Rule {
 public:
  void write(const AllConfig& config, hf::Json& json) const override {
    json["attention_dropout"] = config.model_config.attention_dropout;
    json["residual_dropout"] = config.model_config.hidden_dropout;
  }
};

}  // namespace

Architecture seed_oss() {
  GgufTables gguf = llama_gguf("seed_oss");
  // The norm before the MLP has this name, although it stands before it.
  rename(gguf, "ffn_norm.", "post_attention_norm.");
  gguf.limits = joined(no_output_bias_in_gguf());
  return {
      .model_type = "seed_oss",
      .title = "Seed-OSS",
      .classes = {"SeedOssForCausalLM", "SeedOssModel"},
      .score_class = "SeedOssForSequenceClassification",
      .token_ids = {.bos = 0, .eos = {2}, .pad = 1},
      .rules = joined(
          size("vocab_size", "vocab_size", 155136), size("hidden_size", "hidden_size", 4096),
          size("intermediate_size", "ffn_hidden_size", 27648),
          size("num_hidden_layers", "num_layers", 64),
          heads({.heads = 80, .groups = 8, .head_dim = 128}),
          size("max_position_embeddings", "max_position_embeddings", 524288), rotation(10000.0),
          fixed("normalization", "RMSNorm"), number("rms_norm_eps", "norm_epsilon", 1e-6),
          gated_silu(), flag("attention_bias", {"qkv_has_bias"}, true),
          flag("attention_out_bias", {"out_proj_has_bias"}, false),
          flag("mlp_bias", {"mlp_has_bias"}, false), no_window(), norms_of_blocks(),
          number("initializer_range", "init_method_std", 0.02), std::make_shared<Dropouts>(),
          dense(), written("use_cache", true), written("pretraining_tp", 1)),
      .names = &llama_names(),
      .gguf = gguf,
  };
}

}  // namespace tapestry::architectures
