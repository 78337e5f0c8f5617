#include "interop/architectures/lfm2_tables.h"

#include "interop/architectures/common_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

TensorNames lfm2_names(bool has_experts) {
  std::vector<NamePair> rows = {{"attention_norm.", "operator_norm."},
                                {"ffn_norm.", "ffn_norm."},
                                {"attention.q_norm.", "self_attn.q_layernorm."},
                                {"attention.k_norm.", "self_attn.k_layernorm."},
                                {"attention.wo.", "self_attn.out_proj."},
                                {"feed_forward.w_gate.", "feed_forward.w1."},
                                {"feed_forward.w_up.", "feed_forward.w3."},
                                {"feed_forward.w_down.", "feed_forward.w2."},
                                {"short_conv.wb.", "conv.in_proj."},
                                {"short_conv.wc.", "conv.in_proj."},
                                {"short_conv.wx.", "conv.in_proj."},
                                {"short_conv.conv.", "conv.conv."},
                                {"short_conv.wo.", "conv.out_proj."}};
  if (has_experts) {
    rows.push_back({"moe.router.expert_bias", "feed_forward.expert_bias"});
    rows.push_back({"moe.router.", "feed_forward.gate."});
  }
  TensorNames names =
      has_experts ? llama_names_with(rows, "feed_forward.experts.",
                                     {{"w_gate.", "w1."}, {"w_up.", "w3."}, {"w_down.", "w2."}})
                  : llama_names_with(rows, {}, {});
  names.top = {{"tok_embeddings.", "embed_tokens."}, {"final_norm.", "embedding_norm."}};
  return names;
}

Rules lfm2_rules(int64_t vocabulary, int64_t hidden, int64_t layers) {
  return joined(
      size("vocab_size", "vocab_size", vocabulary), size("hidden_size", "hidden_size", hidden),
      size("num_hidden_layers", "num_layers", layers),
      heads({.heads = 32, .groups = 8, .fill_width = true}),
      size("max_position_embeddings", "max_position_embeddings", 128000), rotation(1000000.0),
      fixed("normalization", "RMSNorm"), number("norm_eps", "norm_epsilon", 1e-5), gated_silu(),
      fixed("qkv_has_bias", false), fixed("out_proj_has_bias", false), fixed("mlp_has_bias", false),
      norms_of_blocks({.qk = true}), size("conv_L_cache", "short_conv_kernel_dim", 3),
      flag("conv_bias", {"short_conv_has_bias"}, false),
      number("initializer_range", "init_method_std", 0.02), written("use_cache", true));
}

}  // namespace tapestry::architectures
