// GLM-4.5 and 4.6. Sources: Glm4MoeConfig and its model in transformers; llama.cpp's architecture
// `glm4moe`.
#include "interop/architectures/common_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture glm4_moe();

Architecture glm4_moe() {
  static const TensorNames kNames = with_layers_ahead(names_with_shared_experts({kCorrectionBias}));
  GgufTables gguf = llama_gguf("glm4moe");
  // The norm before the MLP has this name, although it stands before it.
  rename(gguf, "ffn_norm.", "post_attention_norm.");
  add_shared_experts(gguf);
  gguf.layer.push_back({kCorrectionBias.logical, "exp_probs_b.bias"});
  return {
      .model_type = "glm4_moe",
      .title = "GLM-4.5, GLM-4.6",
      .classes = {"Glm4MoeForCausalLM", "Glm4MoeModel"},
      .rules =
          joined(size("vocab_size", "vocab_size", 151552), size("hidden_size", "hidden_size", 4096),
                 size("intermediate_size", "ffn_hidden_size", 10944),
                 size("num_hidden_layers", "num_layers", 46), heads({.heads = 96, .groups = 8}),
                 size("max_position_embeddings", "max_position_embeddings", 131072),
                 rotation(10000.0, {.share = 0.5}), fixed("normalization", "RMSNorm"),
                 number("rms_norm_eps", "norm_epsilon", 1e-5), gated_silu(),
                 flag("attention_bias", {"qkv_has_bias"}, false), fixed("out_proj_has_bias", false),
                 fixed("mlp_has_bias", false), no_window(),
                 norms_of_blocks({.qk_member = "use_qk_norm"}), experts("n_routed_experts", 128, 8),
                 expert_width("moe_intermediate_size", 1408), shared_experts("n_shared_experts", 1),
                 experts_after(1), sigmoid_gates(), layers_ahead("num_nextn_predict_layers"),
                 number("initializer_range", "init_method_std", 0.02),
                 number("attention_dropout", "attention_dropout", 0.0), written("use_cache", true)),
      .names = &kNames,
      .gguf = gguf,
  };
}

}  // namespace tapestry::architectures
