// Overrides of a small model that make it one of Hugging Face's; without them it is a GPT-2.
#pragma once

#include <string>

#include "tests/parallel_core/small_model.h"

namespace tapestry::testing {

inline const std::string kModel = "model_config.";
inline const std::string kUntied = kModel + "untie_embeddings_and_output_weights=True";
inline const std::string kQkvBias = kModel + "qkv_has_bias=True";

inline Overrides llama(const Overrides& more = {}) {
  Overrides out = {kModel + "position_embedding_type=rope",
                   kModel + "normalization=RMSNorm",
                   kModel + "hidden_act=swiglu",
                   kModel + "add_bias_linear=False",
                   kModel + "group_query_attention=True",
                   kModel + "num_query_groups=2"};
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

inline const std::string kMoe = "moe_config.";

/// A Mixtral of four experts; with kQkvBias and a shared expert a Qwen2-MoE.
inline Overrides mixtral(const Overrides& more = {}) {
  return joined(llama({kMoe + "num_experts=4"}), more);
}
inline Overrides qwen2_moe(const Overrides& more = {}) {
  return joined(mixtral({kQkvBias, kMoe + "moe_ffn_hidden_size=16",
                         kMoe + "moe_shared_expert_intermediate_size=24",
                         kMoe + "use_shared_expert_gating=True"}),
                more);
}

/// A GPT-OSS of four experts, whose matrices lie in one tensor for all of them.
inline Overrides gpt_oss(const Overrides& more = {}) {
  return joined(llama({kModel + "hf_model_type=gpt_oss", kUntied, kQkvBias,
                       kModel + "out_proj_has_bias=True", kModel + "mlp_has_bias=True",
                       kModel + "hidden_act=clamped_swiglu", kModel + "gated_linear_unit=True",
                       kModel + "attention_sinks=True", kMoe + "num_experts=4",
                       kMoe + "moe_router_topk=2", kMoe + "moe_router_has_bias=True"}),
                more);
}

}  // namespace tapestry::testing
