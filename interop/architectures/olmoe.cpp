// OLMoE. Sources: OlmoeConfig and its model in transformers; llama.cpp's architecture `olmoe`.
#include "interop/architectures/common_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture olmoe();

namespace {

class AsManyGroups final : public Rule {
 public:
  void object(const AllConfig& config, std::vector<Objection>& out) const override {
    object_unless(config, "num_query_groups", Value(config.model_config.num_attention_heads), out,
                  "llama.cpp wants keys of each head: use group_query_attention: False");
  }
};

}  // namespace

Architecture olmoe() {
  static const TensorNames kNames = llama_names_with(
      {{"moe.router.", "mlp.gate."}}, "mlp.experts.",
      {{"w_gate.", "gate_proj."}, {"w_up.", "up_proj."}, {"w_down.", "down_proj."}});
  GgufTables gguf = llama_gguf("olmoe");
  add_experts(gguf);
  use_expert_width(gguf);  // llama.cpp has one width
  gguf.limits = joined(
      std::make_shared<AsManyGroups>(), only("qkv_has_bias", false, "use False"),
      no_output_bias_in_gguf(), only("clip_qkv", Value(), "leave it out"), own_head_in_gguf(),
      only("moe_config.norm_topk_prob", false, "llama.cpp leaves gates as they are: use False"));
  return {
      .model_type = "olmoe",
      .title = "OLMoE",
      .classes = {"OlmoeForCausalLM", "OlmoeModel"},
      .token_ids = {.bos = {}, .eos = {50279}, .pad = 1},
      .rules = joined(
          size("vocab_size", "vocab_size", 50304), size("hidden_size", "hidden_size", 2048),
          size("intermediate_size", "ffn_hidden_size", 2048),
          size("num_hidden_layers", "num_layers", 16), heads({.heads = 16, .fill_width = true}),
          size("max_position_embeddings", "max_position_embeddings", 4096), rotation(10000.0),
          fixed("normalization", "RMSNorm"), number("rms_norm_eps", "norm_epsilon", 1e-5),
          gated_silu(), flag("attention_bias", {"qkv_has_bias", "out_proj_has_bias"}, false),
          fixed("mlp_has_bias", false), no_window(),
          norms_of_blocks({.qk = true, .qk_scope = "projection"}),
          optional_number("clip_qkv", "clip_qkv", std::nullopt, /*keeps_null=*/true),
          experts("num_experts", 64, 8), expert_width("intermediate_size", 2048),
          no_shared_expert(), gates_by_norm_topk_prob(false), experts_everywhere(), balance_loss(),
          no_dense_width(), number("initializer_range", "init_method_std", 0.02),
          number("attention_dropout", "attention_dropout", 0.0), written("use_cache", true)),
      .names = &kNames,
      .gguf = gguf,
  };
}

}  // namespace tapestry::architectures
