// StableLM. Sources: StableLmConfig and its model in transformers; llama.cpp's architecture
// `stablelm`.
#include "interop/architectures/common_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture stablelm();

namespace {

// Where a file says nothing, llama.cpp computes both from one norm.
Value is_parallel(const AllConfig& config) { return has_parallel_blocks(config.model_config, 0); }
void take_parallel(const Value& value, AllConfig& config) {
  const bool parallel = value.is_null() || value == Value(true);
  set_value(config, "norm_placement", Value(std::string(parallel ? "parallel_one_norm" : "pre")));
}

}  // namespace

Architecture stablelm() {
  static const TensorNames kNames =
      llama_names_with({{"attention.q_norm.", "self_attn.q_layernorm.norms."},
                        {"attention.k_norm.", "self_attn.k_layernorm.norms."}},
                       {}, {});
  GgufTables gguf = llama_gguf("stablelm");
  use_layer_norm(gguf);
  gguf.keys.push_back({.key = "use_parallel_residual", .made = is_parallel, .back = take_parallel});
  gguf.limits = joined(only("qk_layernorm", false, "use False"),
                       only("untie_embeddings_and_output_weights", true,
                            "llama.cpp wants a matrix of its own: use True"));
  return {
      .model_type = "stablelm",
      .title = "StableLM, StableLM 2",
      .classes = {"StableLmForCausalLM", "StableLmModel"},
      .score_class = "StableLmForSequenceClassification",
      .token_ids = {.bos = 0, .eos = {0}, .pad = {}},
      .rules = joined(
          size("vocab_size", "vocab_size", 50304), size("hidden_size", "hidden_size", 2560),
          size("intermediate_size", "ffn_hidden_size", 6912),
          size("num_hidden_layers", "num_layers", 32), heads({.heads = 32, .fill_width = true}),
          size("max_position_embeddings", "max_position_embeddings", 4096),
          rotation(10000.0, {.share = 0.25}), fixed("normalization", "LayerNorm"),
          number("layer_norm_eps", "norm_epsilon", 1e-5), gated_silu(),
          flag("use_qkv_bias", {"qkv_has_bias"}, false), fixed("out_proj_has_bias", false),
          fixed("mlp_has_bias", false), no_window(),
          norms_of_blocks({.qk_member = "qk_layernorm", .qk_scope = "each_head", .placement = ""}),
          hidden_dropout("hidden_dropout", "", 0.0),
          either("use_parallel_residual", false, "norm_placement", "parallel_one_norm", "pre"),
          number("initializer_range", "init_method_std", 0.02),
          number("attention_dropout", "attention_dropout", 0.0), dense(),
          written("use_cache", true)),
      .names = &kNames,
      .gguf = gguf,
  };
}

}  // namespace tapestry::architectures
