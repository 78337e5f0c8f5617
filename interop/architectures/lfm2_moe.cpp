// LFM2, mixtures. Sources: Lfm2MoeConfig and its model in transformers.
#include "interop/architectures/common_tables.h"
#include "interop/architectures/lfm2_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture lfm2_moe();

Architecture lfm2_moe() {
  static const TensorNames kNames = lfm2_names(true);
  return {
      .model_type = "lfm2_moe",
      .title = "LFM2, mixtures (8B-A1B, 24B-A2B)",
      .classes = {"Lfm2MoeForCausalLM", "Lfm2MoeModel"},
      .token_ids = {.bos = 1, .eos = {2}, .pad = 0},
      .tied = true,
      .rules = joined(
          lfm2_rules(65536, 2048, 32), size("intermediate_size", "ffn_hidden_size", 7168),
          mixer_layers({.kind = "conv", .words = {"conv"}, .attends_by_default = true}),
          experts("num_experts", 32, 4), expert_width("moe_intermediate_size", 1792),
          no_shared_expert(), experts_after(2, "num_dense_layers"),
          sigmoid_gates("use_expert_bias"), fixed("moe_config.moe_router_norm_epsilon", 1e-6)),
      .names = &kNames,
      .no_gguf = "llama.cpp's form of these layers is not written yet",
  };
}

}  // namespace tapestry::architectures
