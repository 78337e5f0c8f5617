// nanochat. Sources: NanoChatConfig and its model in transformers.
#include "interop/architectures/common_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture nanochat();

Architecture nanochat() {
  static const TensorNames kNames = llama_names_with(
      {{"feed_forward.w_up.", "mlp.fc1."}, {"feed_forward.w_down.", "mlp.fc2."}}, {}, {});
  return {
      .model_type = "nanochat",
      .title = "nanochat",
      .classes = {"NanoChatForCausalLM", "NanoChatModel"},
      .token_ids = {.bos = 0, .eos = {1}, .pad = 1},
      .rules = joined(
          size("vocab_size", "vocab_size", 50304), size("hidden_size", "hidden_size", 768),
          size("intermediate_size", "ffn_hidden_size", 8192),
          size("num_hidden_layers", "num_layers", 12), heads({.heads = 6, .fill_width = true}),
          size("max_position_embeddings", "max_position_embeddings", 2048),
          rotation(10000.0, {.backward = true}), fixed("normalization", "RMSNorm"),
          number("rms_norm_eps", "norm_epsilon", 1e-6), fixed("norm_has_gain", false),
          fixed("embedding_norm", true),
          activation("hidden_act", "relu2", {{"relu2", "squared_relu"}}),
          flag("attention_bias", {"qkv_has_bias", "out_proj_has_bias"}, false),
          fixed("mlp_has_bias", false), no_window(), norms_of_blocks({.qk = true}),
          fixed("qk_layernorm_after_rotary", true),
          optional_number("final_logit_softcapping", "logit_softcap", 15.0),
          number("initializer_range", "init_method_std", 0.02),
          number("attention_dropout", "attention_dropout", 0.0), dense(),
          written("use_cache", true)),
      .names = &kNames,
      .no_gguf = "llama.cpp has no architecture whose norms have no gains",
  };
}

}  // namespace tapestry::architectures
