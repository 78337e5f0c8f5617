// Gemma 3, text. Sources: Gemma3TextConfig and its model in transformers; llama.cpp's architecture
// `gemma3`.
#include "interop/architectures/common_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture gemma3();

Architecture gemma3() {
  static const TensorNames kNames = gemma_names();
  GgufTables gguf = llama_gguf("gemma3");
  add_window(gguf);
  add_norms_of_outputs(gguf);
  gguf.keys.push_back({"rope.freq_base_swa", "rotary_config.sliding_rotary_base"});
  gguf.limits =
      joined(windows_in_gguf(6), usual_scale_in_gguf(), only("logit_softcap", 0.0, "use 0"));
  return {
      .model_type = "gemma3_text",
      .title = "Gemma 3, text",
      .classes = {"Gemma3ForCausalLM", "Gemma3TextModel"},
      .score_class = "Gemma3TextForSequenceClassification",
      .token_ids = {.bos = 2, .eos = {1}, .pad = 0},
      .tied = true,
      .rules = joined(
          size("vocab_size", "vocab_size", 262208), size("hidden_size", "hidden_size", 2304),
          size("intermediate_size", "ffn_hidden_size", 9216),
          size("num_hidden_layers", "num_layers", 26),
          heads({.heads = 8, .groups = 4, .head_dim = 256}),
          size("max_position_embeddings", "max_position_embeddings", 131072),
          rotation(1e6, {.sliding_theta = 10000.0, .sliding_member = "rope_local_base_freq"}),
          fixed("normalization", "RMSNorm"), number("rms_norm_eps", "norm_epsilon", 1e-6),
          activation("hidden_activation", "gelu_pytorch_tanh", {{"gelu_pytorch_tanh", "fast_gelu"}},
                     /*gates=*/true),
          flag("attention_bias", {"qkv_has_bias", "out_proj_has_bias"}, false),
          fixed("mlp_has_bias", false),
          windows({.kind = Windows::Kind::kByList,
                   .by_default = 4096,
                   .period = 6,
                   .writes_period = true}),
          norms_of_blocks({.qk = true, .placement = "sandwich", .zero_centered = true}),
          embeddings_by_root_of_width(),
          inverse_root("query_pre_attn_scalar", "attention_scale", 256),
          optional_number("final_logit_softcapping", "logit_softcap", std::nullopt),
          // Stored and not applied.
          written("attn_logit_softcapping", nullptr),
          required("use_bidirectional_attention", false, "attention to later tokens"),
          number("initializer_range", "init_method_std", 0.02),
          number("attention_dropout", "attention_dropout", 0.0), dense(),
          written("use_cache", true)),
      .names = &kNames,
      .gguf = gguf,
  };
}

}  // namespace tapestry::architectures
