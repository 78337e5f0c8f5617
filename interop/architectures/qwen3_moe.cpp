// Qwen3, mixtures. Sources: Qwen3MoeConfig and its model in transformers; llama.cpp's architecture
// `qwen3moe`.
#include "interop/architectures/common_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture qwen3_moe();

Architecture qwen3_moe() {
  static const TensorNames kNames = llama_names_with(
      {{"moe.router.", "mlp.gate."}}, "mlp.experts.",
      {{"w_gate.", "gate_proj."}, {"w_up.", "up_proj."}, {"w_down.", "down_proj."}});
  GgufTables gguf = llama_gguf("qwen3moe");
  add_experts(gguf);
  gguf.limits = joined(
      no_window_in_gguf(), only("qkv_has_bias", false, "use False"), no_output_bias_in_gguf(),
      only("moe_config.norm_topk_prob", true, "llama.cpp divides gates by their sum: use True"),
      no_dense_layers_in_gguf());
  return {
      .model_type = "qwen3_moe",
      .title = "Qwen3, mixtures (30B-A3B, 235B-A22B)",
      .classes = {"Qwen3MoeForCausalLM", "Qwen3MoeModel"},
      .score_class = "Qwen3MoeForSequenceClassification",
      .rules = joined(
          size("vocab_size", "vocab_size", 151936), size("hidden_size", "hidden_size", 2048),
          size("intermediate_size", "ffn_hidden_size", 6144),
          size("num_hidden_layers", "num_layers", 24), heads({.heads = 32, .groups = 4}),
          size("max_position_embeddings", "max_position_embeddings", 32768), rotation(10000.0),
          fixed("normalization", "RMSNorm"), number("rms_norm_eps", "norm_epsilon", 1e-6),
          gated_silu(), flag("attention_bias", {"qkv_has_bias", "out_proj_has_bias"}, false),
          fixed("mlp_has_bias", false), switched_window(/*all_layers=*/true),
          norms_of_blocks({.qk = true}),
          // Newer files call the number otherwise.
          experts("num_experts", 128, 8, /*also=*/"num_local_experts"),
          expert_width("moe_intermediate_size", 768), no_shared_expert(),
          gates_by_norm_topk_prob(false), sparse_layers(), balance_loss(),
          number("initializer_range", "init_method_std", 0.02),
          number("attention_dropout", "attention_dropout", 0.0), written("use_cache", true)),
      .names = &kNames,
      .gguf = gguf,
  };
}

}  // namespace tapestry::architectures
