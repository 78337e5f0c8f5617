// SmolLM3. Sources: SmolLM3Config and its model in transformers; llama.cpp's architecture
// `smollm3`.
#include "interop/architectures/common_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture smollm3();

namespace {

class EveryFourthUnrotated final : public Rule {
 public:
  void object(const AllConfig& config, std::vector<Objection>& out) const override {
    const TransformerConfig& c = config.model_config;
    constexpr int64_t kPeriod = 4;
    for (int64_t layer = 0; layer < c.num_layers; ++layer) {
      if (has_rotation(c, layer) != ((layer + 1) % kPeriod != 0)) {
        out.push_back({"model_config.no_rope_layers", to_yaml(value_of(config, "no_rope_layers")),
                       "llama.cpp rotates all but every 4th layer: use a 0 for these"});
        return;
      }
    }
  }
};

}  // namespace

Architecture smollm3() {
  GgufTables gguf = llama_gguf("smollm3");
  gguf.paired = true;
  gguf.limits = joined(no_window_in_gguf(), std::make_shared<EveryFourthUnrotated>());
  return {
      .model_type = "smollm3",
      .title = "SmolLM3",
      .classes = {"SmolLM3ForCausalLM", "SmolLM3Model"},
      .score_class = "SmolLM3ForSequenceClassification",
      .token_ids = {.bos = 128000, .eos = {128001}, .pad = 128004},
      .tied = true,
      .rules =
          joined(size("vocab_size", "vocab_size", 128256), size("hidden_size", "hidden_size", 2048),
                 size("intermediate_size", "ffn_hidden_size", 11008),
                 size("num_hidden_layers", "num_layers", 36), heads({.heads = 16, .groups = 4}),
                 size("max_position_embeddings", "max_position_embeddings", 32768), rotation(2e6),
                 rotated_layers(4), fixed("normalization", "RMSNorm"),
                 number("rms_norm_eps", "norm_epsilon", 1e-6), gated_silu(),
                 flag("attention_bias", {"qkv_has_bias", "out_proj_has_bias"}, false),
                 flag("mlp_bias", {"mlp_has_bias"}, false), switched_window(/*all_layers=*/true),
                 norms_of_blocks(), number("initializer_range", "init_method_std", 0.02),
                 number("attention_dropout", "attention_dropout", 0.0), dense(),
                 written("use_cache", true)),
      .names = &llama_names(),
      .gguf = gguf,
  };
}

}  // namespace tapestry::architectures
