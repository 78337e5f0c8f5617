// OLMo Hybrid. Sources: OlmoHybridConfig and its model in transformers. llama.cpp has no such
// architecture.
#include "interop/architectures/common_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture olmo_hybrid();

Architecture olmo_hybrid() {
  static const TensorNames kNames =
      llama_names_with({{"attention_norm.", "attention_layer_norm."},
                        {"ffn_norm.", "feedforward_layer_norm."},
                        {"attention_post_norm.", "post_attention_layernorm."},
                        {"ffn_post_norm.", "post_feedforward_layernorm."},
                        {"linear_attention.wq.", "linear_attn.q_proj."},
                        {"linear_attention.wk.", "linear_attn.k_proj."},
                        {"linear_attention.wv.", "linear_attn.v_proj."},
                        {"linear_attention.wz.", "linear_attn.g_proj."},
                        {"linear_attention.wb.", "linear_attn.b_proj."},
                        {"linear_attention.wa.", "linear_attn.a_proj."},
                        {"linear_attention.conv_q.", "linear_attn.q_conv1d."},
                        {"linear_attention.conv_k.", "linear_attn.k_conv1d."},
                        {"linear_attention.conv_v.", "linear_attn.v_conv1d."},
                        {"linear_attention.A_log.weight", "linear_attn.A_log"},
                        {"linear_attention.dt_bias.weight", "linear_attn.dt_bias"},
                        {"linear_attention.norm.", "linear_attn.o_norm."},
                        {"linear_attention.wo.", "linear_attn.o_proj."}},
                       {}, {});
  return {
      .model_type = "olmo_hybrid",
      .title = "OLMo Hybrid",
      .classes = {"OlmoHybridForCausalLM", "OlmoHybridModel"},
      .token_ids = {.bos = {}, .eos = {100257}, .pad = 100277},
      .rules = joined(
          size("vocab_size", "vocab_size", 100352), size("hidden_size", "hidden_size", 3840),
          size("intermediate_size", "ffn_hidden_size", 11008),
          size("num_hidden_layers", "num_layers", 32), heads({.heads = 30, .fill_width = true}),
          size("max_position_embeddings", "max_position_embeddings", 65536),
          rotation_unless_null(rotation(10000.0)), fixed("normalization", "RMSNorm"),
          number("rms_norm_eps", "norm_epsilon", 1e-6), gated_silu(),
          flag("attention_bias", {"qkv_has_bias", "out_proj_has_bias"}, false),
          fixed("mlp_has_bias", false),
          mixer_layers({.kind = "linear_attention",
                        .words = {"linear_attention"},
                        .period = 4,
                        .needs_both = true}),
          delta_net_sizes_by_heads(),
          flag("linear_allow_neg_eigval", {"linear_allow_neg_eigval"}, true),
          fixed("linear_norm_epsilon", 1e-5), fixed("mixer_norm_placement", "pre"),
          norms_of_blocks({.qk = true, .qk_scope = "projection", .placement = "post"}),
          number("initializer_range", "init_method_std", 0.02),
          number("attention_dropout", "attention_dropout", 0.0), dense(),
          written("use_cache", true)),
      .names = &kNames,
      .no_gguf = "llama.cpp has no architecture for it",
  };
}

}  // namespace tapestry::architectures
