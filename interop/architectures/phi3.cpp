// Phi-3, Phi-3.5, Phi-4 and Phi-4-mini. Sources: Phi3Config and its model in transformers;
// llama.cpp's architecture `phi3`.
#include "interop/architectures/common_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture phi3();

namespace {

// The length of longrope stands beside the scaling.
class OriginalLength final : public Rule {
 public:
  void write(const AllConfig& config, hf::Json& json) const override {
    const TransformerConfig& c = config.model_config;
    json["original_max_position_embeddings"] =
        c.rotary_config.rope_type == "longrope" ? c.rotary_config.original_max_position_embeddings
                                                : c.max_position_embeddings.value();
  }
};

}  // namespace

Architecture phi3() {
  static const TensorNames kNames = llama_names_with({{"attention.wq.", "self_attn.qkv_proj."},
                                                      {"attention.wk.", "self_attn.qkv_proj."},
                                                      {"attention.wv.", "self_attn.qkv_proj."},
                                                      {"feed_forward.w_gate.", "mlp.gate_up_proj."},
                                                      {"feed_forward.w_up.", "mlp.gate_up_proj."}},
                                                     {}, {});
  GgufTables gguf = llama_gguf("phi3");
  join_heads(gguf);
  rename(gguf, "feed_forward.w_gate.", "ffn_up.");
  gguf.scalings = {"yarn", "longrope"};
  gguf.limits = no_window_in_gguf();
  return {
      .model_type = "phi3",
      .title = "Phi-3, Phi-3.5, Phi-4, Phi-4-mini",
      .classes = {"Phi3ForCausalLM", "Phi3Model"},
      .score_class = "Phi3ForSequenceClassification",
      .token_ids = {.bos = 1, .eos = {32000}, .pad = 32000},
      .rules = joined(
          size("vocab_size", "vocab_size", 32064), size("hidden_size", "hidden_size", 3072),
          size("intermediate_size", "ffn_hidden_size", 8192),
          size("num_hidden_layers", "num_layers", 32), heads({.heads = 32, .fill_width = true}),
          size("max_position_embeddings", "max_position_embeddings", 4096),
          rotation(10000.0, {.share = 1.0}), fixed("normalization", "RMSNorm"),
          number("rms_norm_eps", "norm_epsilon", 1e-5), gated_silu(), fixed("qkv_has_bias", false),
          fixed("out_proj_has_bias", false), fixed("mlp_has_bias", false), window(std::nullopt),
          norms_of_blocks(), hidden_dropout("resid_pdrop", "embd_pdrop", 0.0),
          std::make_shared<OriginalLength>(), number("initializer_range", "init_method_std", 0.02),
          number("attention_dropout", "attention_dropout", 0.0), dense(),
          written("use_cache", true)),
      .names = &kNames,
      .gguf = gguf,
  };
}

}  // namespace tapestry::architectures
