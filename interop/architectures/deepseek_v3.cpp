// DeepSeek-V3, DeepSeek-R1. Sources: DeepseekV3Config and its model in transformers; llama.cpp's
// architecture `deepseek2`.
#include "interop/architectures/common_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture deepseek_v3();

Architecture deepseek_v3() {
  static const TensorNames kNames = with_layers_ahead(deepseek_names({kCorrectionBias}));
  GgufTables gguf = deepseek_gguf();
  gguf.layer.push_back({kCorrectionBias.logical, "exp_probs_b.bias"});
  return {
      .model_type = "deepseek_v3",
      .title = "DeepSeek-V3, DeepSeek-R1",
      .classes = {"DeepseekV3ForCausalLM", "DeepseekV3Model"},
      .score_class = "DeepseekV3ForSequenceClassification",
      .token_ids = {.bos = 0, .eos = {1}, .pad = {}},
      .rules = joined(
          size("vocab_size", "vocab_size", 129280), size("hidden_size", "hidden_size", 7168),
          size("intermediate_size", "ffn_hidden_size", 18432),
          size("num_hidden_layers", "num_layers", 61),
          latent_attention({.heads = 128, .q_rank = 1536, .kv_rank = 512, .has_interleave = true}),
          size("max_position_embeddings", "max_position_embeddings", 4096),
          rotation(10000.0, {.decides_pairs = false}), fixed("normalization", "RMSNorm"),
          number("rms_norm_eps", "norm_epsilon", 1e-6), gated_silu(),
          flag("attention_bias", {"qkv_has_bias", "out_proj_has_bias"}, false),
          fixed("mlp_has_bias", false), no_window(), norms_of_blocks(),
          experts("n_routed_experts", 256, 8), expert_width("moe_intermediate_size", 2048),
          shared_experts("n_shared_experts", 1), experts_after(3), sigmoid_gates(),
          layers_ahead("num_nextn_predict_layers"),
          number("initializer_range", "init_method_std", 0.02),
          number("attention_dropout", "attention_dropout", 0.0), written("use_cache", true)),
      .names = &kNames,
      .gguf = gguf,
  };
}

}  // namespace tapestry::architectures
