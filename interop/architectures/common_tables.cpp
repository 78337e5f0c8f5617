#include "interop/architectures/common_tables.h"

#include <utility>

namespace tapestry::architectures {

const TensorNames& llama_names() {
  static const TensorNames names = llama_names_with({}, {}, {});
  return names;
}

TensorNames llama_names_with(std::vector<NamePair> more,
                             std::string_view experts,
                             std::vector<NamePair> expert) {
  TensorNames names = {
      .part = "model.",
      .layers = "layers.",
      .top = {{"tok_embeddings.", "embed_tokens."}, {"final_norm.", "norm."}},
      .layer = std::move(more),
      .experts = experts,
      .expert = std::move(expert),
      // Of old files.
      .constants = {"rotary_emb.inv_freq"},
  };
  const std::vector<NamePair> layer = {
      {"attention_norm.", "input_layernorm."},    {"attention.wq.", "self_attn.q_proj."},
      {"attention.wk.", "self_attn.k_proj."},     {"attention.wv.", "self_attn.v_proj."},
      {"attention.wo.", "self_attn.o_proj."},     {"attention.q_norm.", "self_attn.q_norm."},
      {"attention.k_norm.", "self_attn.k_norm."}, {"ffn_norm.", "post_attention_layernorm."},
      {"feed_forward.w_gate.", "mlp.gate_proj."}, {"feed_forward.w_up.", "mlp.up_proj."},
      {"feed_forward.w_down.", "mlp.down_proj."}};
  names.layer.insert(names.layer.end(), layer.begin(), layer.end());
  return names;
}

GgufTables llama_gguf(std::string_view architecture) {
  GgufTables gguf = {
      .architecture = architecture,
      .top = {{"tok_embeddings.", "token_embd."},
              {"final_norm.", "output_norm."},
              {"lm_head.", "output."}},
      .layer = {{"attention_norm.", "attn_norm."},
                {"attention.wq.", "attn_q."},
                {"attention.wk.", "attn_k."},
                {"attention.wv.", "attn_v."},
                {"attention.q_norm.", "attn_q_norm."},
                {"attention.k_norm.", "attn_k_norm."},
                {"attention.wo.", "attn_output."},
                {"ffn_norm.", "ffn_norm."},
                {"feed_forward.w_gate.", "ffn_gate."},
                {"feed_forward.w_up.", "ffn_up."},
                {"feed_forward.w_down.", "ffn_down."}},
      .keys = common_gguf_keys(),
  };
  for (const GgufKey& key : {GgufKey{"attention.head_count_kv", "num_query_groups"},
                             GgufKey{"attention.layer_norm_rms_epsilon", "norm_epsilon"},
                             GgufKey{"attention.key_length", "kv_channels"},
                             GgufKey{"attention.value_length", "kv_channels"},
                             GgufKey{"rope.dimension_count", "kv_channels"},
                             GgufKey{"rope.freq_base", "rotary_config.rotary_base"}}) {
    gguf.keys.push_back(key);
  }
  return gguf;
}

std::vector<GgufKey> common_gguf_keys() {
  return {{"block_count", "num_layers"},
          {"context_length", "max_position_embeddings"},
          {"embedding_length", "hidden_size"},
          {"feed_forward_length", "ffn_hidden_size"},
          {"attention.head_count", "num_attention_heads"},
          {"vocab_size", "vocab_size"}};
}

}  // namespace tapestry::architectures
