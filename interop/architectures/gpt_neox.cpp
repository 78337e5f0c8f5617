// GPT-NeoX, Pythia. Sources: GPTNeoXConfig and its model in transformers.
#include "interop/architectures/common_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture gpt_neox();

namespace {

Value is_parallel(const AllConfig& config) { return has_parallel_blocks(config.model_config, 0); }
void take_parallel(const Value& value, AllConfig& config) {
  const bool parallel = value.is_null() || value == Value(true);
  set_value(config, "norm_placement", Value(std::string(parallel ? "parallel" : "pre")));
}

}  // namespace

Architecture gpt_neox() {
  static const TensorNames kNames = {
      .part = "gpt_neox.",
      .layers = "layers.",
      .head = "embed_out.",
      .top = {{"tok_embeddings.", "embed_in."}, {"final_norm.", "final_layer_norm."}},
      .layer = {{"attention_norm.", "input_layernorm."},
                {"attention.wq.", "attention.query_key_value."},
                {"attention.wk.", "attention.query_key_value."},
                {"attention.wv.", "attention.query_key_value."},
                {"attention.wo.", "attention.dense."},
                {"ffn_norm.", "post_attention_layernorm."},
                {"feed_forward.w_up.", "mlp.dense_h_to_4h."},
                {"feed_forward.w_down.", "mlp.dense_4h_to_h."}},
      .grouped = true,
      .constants = {".attention.bias", ".attention.masked_bias", "rotary_emb.inv_freq"},
  };
  GgufTables gguf = llama_gguf_without_gate("gptneox");
  use_layer_norm(gguf);
  join_heads(gguf);
  gguf.keys.push_back({.key = "use_parallel_residual", .made = is_parallel, .back = take_parallel});
  gguf.limits = joined(own_head_in_gguf(), only("qkv_has_bias", true, "use True"));
  return {
      .model_type = "gpt_neox",
      .title = "GPT-NeoX, Pythia",
      .classes = {"GPTNeoXForCausalLM", "GPTNeoXModel"},
      .score_class = "GPTNeoXForSequenceClassification",
      .token_ids = {.bos = 0, .eos = {0}, .pad = {}},
      .rules = joined(
          size("vocab_size", "vocab_size", 50432), size("hidden_size", "hidden_size", 6144),
          size("intermediate_size", "ffn_hidden_size", 24576),
          size("num_hidden_layers", "num_layers", 44),
          heads({.heads = 64, .fill_width = true, .grouped = false}),
          size("max_position_embeddings", "max_position_embeddings", 2048),
          rotation(
              10000.0,
              {.share = 0.25, .share_member = "rotary_pct", .theta_member = "rotary_emb_base"}),
          fixed("normalization", "LayerNorm"), number("layer_norm_eps", "norm_epsilon", 1e-5),
          activation("hidden_act", "gelu",
                     {{"gelu", "gelu"},
                      {"gelu_fast", "fast_gelu"},
                      {"gelu_new", "fast_gelu", /*writes=*/false},
                      {"gelu_pytorch_tanh", "fast_gelu", /*writes=*/false}}),
          flag("attention_bias", {"qkv_has_bias", "out_proj_has_bias"}, true),
          fixed("mlp_has_bias", true), no_window(), norms_of_blocks({.placement = ""}),
          either("use_parallel_residual", true, "norm_placement", "parallel", "pre"),
          hidden_dropout("hidden_dropout", "", 0.0),
          number("initializer_range", "init_method_std", 0.02),
          number("attention_dropout", "attention_dropout", 0.0), dense(),
          written("use_cache", true)),
      .names = &kNames,
      .gguf = gguf,
  };
}

}  // namespace tapestry::architectures
