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

/// A Gemma 4 of four layers, every other one with a window: heads of two sizes, per-layer
/// embeddings, and in the last layer the keys of the second one and a wider MLP.
inline Overrides gemma4(const Overrides& more = {}) {
  return joined(
      llama({kModel + "num_layers=4", kModel + "hf_model_type=gemma4_text",
             kModel + "hidden_act=fast_gelu", kModel + "gated_linear_unit=True",
             kModel + "norm_placement=sandwich", kModel + "qk_layernorm=True",
             kModel + "v_layernorm=True", kModel + "attention_scale=1.0",
             kModel + "layer_scalar=True", kModel + "embedding_multiplier=5.656854249492381",
             kModel + "window_size=[3, 0]", kModel + "sliding_window_pattern=2",
             kModel + "full_attention_kv_channels=12",
             kModel + "rotary_config={rope_type: proportional, rotary_percent: 0.5, rotary_base: "
                      "1000, sliding_rotary_base: 100}",
             kModel + "per_layer_embedding_size=6", kModel + "per_layer_vocab_size=33",
             kModel + "num_kv_shared_layers=1", kModel + "use_double_wide_mlp=True"}),
      more);
}

/// The same with four experts beside the dense MLP, values that are keys, and no shared keys.
inline Overrides gemma4_moe(const Overrides& more = {}) {
  return joined(gemma4({kModel + "num_kv_shared_layers=0", kModel + "use_double_wide_mlp=False",
                        kModel + "full_attention_num_query_groups=1",
                        kModel + "full_attention_value_is_key=True", kMoe + "num_experts=4",
                        kMoe + "moe_router_topk=2", kMoe + "moe_ffn_hidden_size=24",
                        kMoe + "moe_beside_dense=True"}),
                more);
}

}  // namespace tapestry::testing
