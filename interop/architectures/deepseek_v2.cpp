// DeepSeek-V2. Sources: DeepseekV2Config and its model in transformers; llama.cpp's architecture
// `deepseek2`.
#include "interop/architectures/common_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture deepseek_v2();

Architecture deepseek_v2() {
  static const TensorNames kNames = deepseek_names({});
  GgufTables gguf = deepseek_gguf();
  gguf.limits.push_back(only("moe_config.topk_method", "greedy",
                             "llama.cpp ranks groups by their two best experts: use greedy"));
  return {
      .model_type = "deepseek_v2",
      .title = "DeepSeek-V2",
      .classes = {"DeepseekV2ForCausalLM", "DeepseekV2Model"},
      .score_class = "DeepseekV2ForSequenceClassification",
      .token_ids = {.bos = 100000, .eos = {100001}, .pad = {}},
      .rules =
          joined(size("vocab_size", "vocab_size", 102400), size("hidden_size", "hidden_size", 4096),
                 size("intermediate_size", "ffn_hidden_size", 11008),
                 size("num_hidden_layers", "num_layers", 32),
                 latent_attention({.heads = 32, .q_rank = 1536, .kv_rank = 512}),
                 size("max_position_embeddings", "max_position_embeddings", 2048),
                 rotation(10000.0, {.decides_pairs = false}), fixed("normalization", "RMSNorm"),
                 number("rms_norm_eps", "norm_epsilon", 1e-6), gated_silu(),
                 flag("attention_bias", {"qkv_has_bias", "out_proj_has_bias"}, false),
                 flag("mlp_bias", {"mlp_has_bias"}, false), no_window(), norms_of_blocks(),
                 experts("n_routed_experts", 64, 6), expert_width("moe_intermediate_size", 1407),
                 shared_experts("n_shared_experts", 2), experts_after(0), grouped_softmax_gates(),
                 number("initializer_range", "init_method_std", 0.02),
                 number("attention_dropout", "attention_dropout", 0.0), written("use_cache", true)),
      .names = &kNames,
      .gguf = gguf,
  };
}

}  // namespace tapestry::architectures
