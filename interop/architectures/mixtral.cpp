// Mixtral. Sources: MixtralConfig and its model in transformers; llama.cpp's architecture `llama`.
#include "autograd/tensor/error.h"
#include "interop/architectures/common_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture mixtral();

namespace {

class Jitter final : public Rule {
 public:
  void read(hf::Fields& file) const override {
    const hf::Found<double> jitter = file.number("router_jitter_noise", 0.0);
    if (jitter.value < 0 || jitter.value >= 1) {
      file.finding("router_jitter_noise", concat("expected a number in [0, 1), got ", jitter.text));
    }
    file.set_moe("moe_input_jitter_eps", jitter.value > 0 ? Value(jitter.value) : Value(),
                 "router_jitter_noise", jitter.text, jitter.written);
  }
  void write(const AllConfig& config, hf::Json& json) const override {
    json["router_jitter_noise"] = config.moe_config.moe_input_jitter_eps.value_or(0.0);
  }
};

}  // namespace

Architecture mixtral() {
  static const TensorNames kNames =
      llama_names_with({{"moe.router.", "block_sparse_moe.gate."}}, "block_sparse_moe.experts.",
                       {{"w_gate.", "w1."}, {"w_up.", "w3."}, {"w_down.", "w2."}});
  constexpr int64_t kWidth = 14336;
  GgufTables gguf = llama_gguf("llama");
  gguf.paired = true;
  gguf.also = {"model_config.rotary_config.rotary_interleaved"};
  gguf.scalings = {"yarn", "llama3", "longrope"};
  add_experts(gguf);
  use_expert_width(gguf);
  gguf.limits = no_window_in_gguf();
  return {
      .model_type = "mixtral",
      .title = "Mixtral",
      .implied = true,
      .classes = {"MixtralForCausalLM", "MixtralModel"},
      .score_class = "MixtralForSequenceClassification",
      .token_ids = {.bos = 1, .eos = {2}, .pad = {}},
      .rules =
          joined(size("vocab_size", "vocab_size", 32000), size("hidden_size", "hidden_size", 4096),
                 size("intermediate_size", "ffn_hidden_size", kWidth),
                 size("num_hidden_layers", "num_layers", 32), heads({.heads = 32, .groups = 8}),
                 size("max_position_embeddings", "max_position_embeddings", 131072), rotation(1e6),
                 fixed("normalization", "RMSNorm"), number("rms_norm_eps", "norm_epsilon", 1e-5),
                 gated_silu(), fixed("qkv_has_bias", false), fixed("out_proj_has_bias", false),
                 fixed("mlp_has_bias", false), window(std::nullopt), norms_of_blocks(),
                 number("initializer_range", "init_method_std", 0.02),
                 number("attention_dropout", "attention_dropout", 0.0),
                 experts("num_local_experts", 8, 2), expert_width("intermediate_size", kWidth),
                 experts_everywhere(), no_shared_expert(), normalised_gates(), balance_loss(),
                 std::make_shared<Jitter>(), no_dense_width(), written("use_cache", true)),
      .names = &kNames,
      .gguf = gguf,
  };
}

}  // namespace tapestry::architectures
