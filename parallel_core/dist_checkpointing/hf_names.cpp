#include "parallel_core/dist_checkpointing/hf_names.h"

namespace tapestry {

namespace {

bool has_plain_structure(const TransformerConfig& c) {
  return !c.qk_layernorm && !c.use_sandwich_norm && c.use_final_norm &&
         !c.apply_residual_connection_post_norm && !c.out_hidden_size;
}

}  // namespace

bool has_gated_mlp(const TransformerConfig& config) {
  return config.hidden_act == "swiglu" || config.hidden_act == "fused_swiglu";
}

std::string file_model_type(const TransformerConfig& c) {
  if (!has_plain_structure(c)) {
    return "tapestry";
  }
  const bool rms = c.normalization == "RMSNorm" || c.normalization == "FusedRMSNorm";
  const bool plain_rope = c.position_embedding_type == "rope" &&
                          c.rotary_config.rotary_percent == 1.0 &&
                          !c.rotary_config.rotary_interleaved;
  const bool swiglu = has_gated_mlp(c);
  if (rms && plain_rope && swiglu) {
    if (c.qkv_has_bias && !c.out_proj_has_bias && !c.mlp_has_bias) {
      return "qwen2";
    }
    // Llama's attention has four biases or none, and no window.
    return c.qkv_has_bias == c.out_proj_has_bias && !c.window_size ? "llama" : "tapestry";
  }
  const bool gelu = c.hidden_act == "gelu" || c.hidden_act == "fast_gelu";
  if (!rms && !c.window_size && c.position_embedding_type == "learned_absolute" && gelu &&
      c.qkv_has_bias && c.out_proj_has_bias && c.mlp_has_bias &&
      !c.untie_embeddings_and_output_weights && c.num_query_groups == c.num_attention_heads &&
      c.kv_channels.value() * c.num_attention_heads == c.hidden_size) {
    return "gpt2";
  }
  return "tapestry";
}

}  // namespace tapestry
