// Qwen1.5-MoE and Qwen2's mixture. Sources: Qwen2MoeConfig and its model in transformers;
// llama.cpp's architecture `qwen2moe`.
#include "interop/architectures/common_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture qwen2_moe();

Architecture qwen2_moe() {
  static const TensorNames kNames = llama_names_with(
      {{"moe.router.", "mlp.gate."},
       {"moe.shared_expert_gate.", "mlp.shared_expert_gate."},
       {"moe.shared_expert.w_gate.", "mlp.shared_expert.gate_proj."},
       {"moe.shared_expert.w_up.", "mlp.shared_expert.up_proj."},
       {"moe.shared_expert.w_down.", "mlp.shared_expert.down_proj."}},
      "mlp.experts.",
      {{"w_gate.", "gate_proj."}, {"w_up.", "up_proj."}, {"w_down.", "down_proj."}});
  GgufTables gguf = llama_gguf("qwen2moe");
  add_experts(gguf);
  for (const NamePair& row : {NamePair{"moe.shared_expert_gate.", "ffn_gate_inp_shexp."},
                              NamePair{"moe.shared_expert.w_gate.", "ffn_gate_shexp."},
                              NamePair{"moe.shared_expert.w_up.", "ffn_up_shexp."},
                              NamePair{"moe.shared_expert.w_down.", "ffn_down_shexp."}}) {
    gguf.layer.push_back(row);
  }
  gguf.keys.push_back(
      {"expert_shared_feed_forward_length", "moe_config.moe_shared_expert_intermediate_size"});
  gguf.limits = joined(
      no_window_in_gguf(), no_dense_layers_in_gguf(), own_head_in_gguf(),
      heads_fill_width_in_gguf(),
      only("moe_config.norm_topk_prob", false, "llama.cpp leaves gates as they are: use False"));
  return {
      .model_type = "qwen2_moe",
      .title = "Qwen1.5-MoE, Qwen2-MoE",
      .implied = true,
      .classes = {"Qwen2MoeForCausalLM", "Qwen2MoeModel"},
      .score_class = "Qwen2MoeForSequenceClassification",
      .rules = joined(
          size("vocab_size", "vocab_size", 151936), size("hidden_size", "hidden_size", 2048),
          size("intermediate_size", "ffn_hidden_size", 5632),
          size("num_hidden_layers", "num_layers", 24), heads({.heads = 16}),
          size("max_position_embeddings", "max_position_embeddings", 32768), rotation(10000.0),
          fixed("normalization", "RMSNorm"), number("rms_norm_eps", "norm_epsilon", 1e-6),
          gated_silu(), fixed("qkv_has_bias", true), fixed("out_proj_has_bias", false),
          fixed("mlp_has_bias", false), switched_window(), norms_of_blocks(),
          number("initializer_range", "init_method_std", 0.02),
          number("attention_dropout", "attention_dropout", 0.0), experts("num_experts", 60, 4),
          expert_width("moe_intermediate_size", 1408),
          shared_expert("shared_expert_intermediate_size", 5632), gates_by_norm_topk_prob(false),
          sparse_layers(), balance_loss(),
          required("qkv_bias", true, "queries, keys and values without biases"),
          written("use_cache", true)),
      .names = &kNames,
      .gguf = gguf,
  };
}

}  // namespace tapestry::architectures
