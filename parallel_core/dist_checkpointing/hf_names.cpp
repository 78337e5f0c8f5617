#include "parallel_core/dist_checkpointing/hf_names.h"

#include <nlohmann/json.hpp>

namespace tapestry {

namespace {

bool has_plain_structure(const TransformerConfig& c) {
  return !c.qk_layernorm && !c.window_size && !c.use_sandwich_norm && c.use_final_norm &&
         !c.apply_residual_connection_post_norm && !c.out_hidden_size;
}

}  // namespace

std::string file_model_type(const TransformerConfig& c) {
  if (!has_plain_structure(c)) {
    return "tapestry";
  }
  const bool rms = c.normalization == "RMSNorm" || c.normalization == "FusedRMSNorm";
  const bool plain_rope = c.position_embedding_type == "rope" &&
                          c.rotary_config.rotary_percent == 1.0 &&
                          !c.rotary_config.rotary_interleaved &&
                          c.rotary_config.seq_len_interpolation_factor.value_or(1.0) == 1.0;
  const bool swiglu = c.hidden_act == "swiglu" || c.hidden_act == "fused_swiglu";
  if (rms && plain_rope && swiglu && !c.out_proj_has_bias && !c.mlp_has_bias) {
    return c.qkv_has_bias ? "qwen2" : "llama";
  }
  const bool gelu = c.hidden_act == "gelu" || c.hidden_act == "fast_gelu";
  if (!rms && c.position_embedding_type == "learned_absolute" && gelu && c.qkv_has_bias &&
      c.out_proj_has_bias && c.mlp_has_bias && !c.untie_embeddings_and_output_weights &&
      c.num_query_groups == c.num_attention_heads &&
      c.kv_channels.value() * c.num_attention_heads == c.hidden_size) {
    return "gpt2";
  }
  return "tapestry";
}

std::string model_config_json(const TransformerConfig& c, const std::string& type) {
  nlohmann::ordered_json json;
  json["model_type"] = type;
  json["torch_dtype"] = std::string(name_of(c.params_dtype));
  json["vocab_size"] = c.vocab_size;
  json["tie_word_embeddings"] = !c.untie_embeddings_and_output_weights;
  json["initializer_range"] = c.init_method_std;
  if (type == "gpt2") {
    json["architectures"] = {"GPT2LMHeadModel"};
    json["n_positions"] = c.max_position_embeddings.value();
    json["n_embd"] = c.hidden_size;
    json["n_layer"] = c.num_layers;
    json["n_head"] = c.num_attention_heads;
    json["n_inner"] = c.ffn_hidden_size;
    json["activation_function"] = c.hidden_act == "gelu" ? "gelu" : "gelu_new";
    json["layer_norm_epsilon"] = c.norm_epsilon;
    json["resid_pdrop"] = c.hidden_dropout;
    json["embd_pdrop"] = c.hidden_dropout;
    json["attn_pdrop"] = c.attention_dropout;
    return json.dump(2) + "\n";
  }
  if (type != "tapestry") {
    json["architectures"] = {type == "llama" ? "LlamaForCausalLM" : "Qwen2ForCausalLM"};
    json["hidden_act"] = "silu";
    json["rope_theta"] = c.rotary_config.rotary_base;
    json["rms_norm_eps"] = c.norm_epsilon;
    json["attention_bias"] = false;
    json["mlp_bias"] = false;
  }
  json["hidden_size"] = c.hidden_size;
  json["intermediate_size"] = c.ffn_hidden_size;
  json["num_hidden_layers"] = c.num_layers;
  json["num_attention_heads"] = c.num_attention_heads;
  json["num_key_value_heads"] = c.num_query_groups;
  json["head_dim"] = c.kv_channels.value();
  json["max_position_embeddings"] = c.max_position_embeddings.value();
  return json.dump(2) + "\n";
}

}  // namespace tapestry
