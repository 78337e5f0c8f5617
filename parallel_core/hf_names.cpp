#include "parallel_core/hf_names.h"

namespace tapestry {

namespace {

bool has_plain_structure(const TransformerConfig& c) {
  return !c.qk_layernorm && !c.use_sandwich_norm && c.use_final_norm &&
         !c.apply_residual_connection_post_norm && !c.out_hidden_size;
}

// The k experts with the largest logits, weighted by a softmax over those or over all.
bool has_plain_router(const MoEConfig& moe) {
  return moe.topk_method == "greedy" && moe.moe_router_score_function == "softmax" &&
         moe.moe_router_topk_scaling_factor == 1.0 && !moe.moe_router_enable_expert_bias &&
         moe.moe_router_pre_softmax != moe.norm_topk_prob.value_or(!moe.moe_router_pre_softmax);
}

// What the Llama with experts is whose attention has these biases.
std::string type_of_experts(const TransformerConfig& c) {
  const MoEConfig& moe = c.moe;
  if (!has_plain_router(moe) || c.out_proj_has_bias || c.mlp_has_bias) {
    return "tapestry";
  }
  const bool shared = moe.moe_shared_expert_intermediate_size.has_value();
  if (c.qkv_has_bias) {
    return shared && moe.use_shared_expert_gating ? "qwen2_moe" : "tapestry";
  }
  bool everywhere = true;
  for (int64_t layer = 0; layer < c.num_layers; ++layer) {
    everywhere = everywhere && is_moe_layer(c, layer);
  }
  return everywhere && !shared && !moe.moe_router_pre_softmax ? "mixtral" : "tapestry";
}

}  // namespace

std::string file_model_type(const TransformerConfig& c) {
  if (!has_plain_structure(c)) {
    return "tapestry";
  }
  const bool rms = c.normalization == "RMSNorm" || c.normalization == "FusedRMSNorm";
  const bool plain_rope = c.position_embedding_type == "rope" &&
                          c.rotary_config.rotary_percent == 1.0 &&
                          !c.rotary_config.rotary_interleaved;
  const bool swiglu = has_gated_mlp(c);
  const bool experts = c.moe.num_experts > 1;
  if (rms && plain_rope && swiglu && experts) {
    return type_of_experts(c);
  }
  if (rms && plain_rope && swiglu) {
    if (c.qkv_has_bias && !c.out_proj_has_bias && !c.mlp_has_bias) {
      return "qwen2";
    }
    // Llama's attention has four biases or none, and no window.
    return c.qkv_has_bias == c.out_proj_has_bias && !c.window_size ? "llama" : "tapestry";
  }
  const bool gelu = c.hidden_act == "gelu" || c.hidden_act == "fast_gelu";
  if (!rms && !experts && !c.window_size && c.position_embedding_type == "learned_absolute" &&
      gelu && c.qkv_has_bias && c.out_proj_has_bias && c.mlp_has_bias &&
      !c.untie_embeddings_and_output_weights && c.num_query_groups == c.num_attention_heads &&
      c.kv_channels.value() * c.num_attention_heads == c.hidden_size) {
    return "gpt2";
  }
  return "tapestry";
}

}  // namespace tapestry
