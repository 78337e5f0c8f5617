// StarCoder2. Sources: Starcoder2Config and its model in transformers; llama.cpp's architecture
// `starcoder2`.
#include "interop/architectures/common_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture starcoder2();

Architecture starcoder2() {
  static const TensorNames kNames = llama_names_with(
      {{"feed_forward.w_up.", "mlp.c_fc."}, {"feed_forward.w_down.", "mlp.c_proj."}}, {}, {});
  GgufTables gguf = llama_gguf_without_gate("starcoder2");
  use_layer_norm(gguf);
  gguf.limits = joined(
      no_window_in_gguf(), only("qkv_has_bias", true, "use True"),
      only("hidden_act", "fast_gelu", "llama.cpp computes GELU by its tanh form: use fast_gelu"));
  return {
      .model_type = "starcoder2",
      .title = "StarCoder2",
      .classes = {"Starcoder2ForCausalLM", "Starcoder2Model"},
      .score_class = "Starcoder2ForSequenceClassification",
      .token_ids = {.bos = 50256, .eos = {50256}, .pad = {}},
      .tied = true,
      .rules = joined(
          size("vocab_size", "vocab_size", 49152), size("hidden_size", "hidden_size", 3072),
          size("intermediate_size", "ffn_hidden_size", 12288),
          size("num_hidden_layers", "num_layers", 30),
          heads({.heads = 24, .groups = 2, .fill_width = true}),
          size("max_position_embeddings", "max_position_embeddings", 4096), rotation(10000.0),
          fixed("normalization", "LayerNorm"), number("norm_epsilon", "norm_epsilon", 1e-5),
          activation(
              "hidden_act", "gelu_pytorch_tanh",
              {{"gelu_pytorch_tanh", "fast_gelu"}, {"gelu_new", "fast_gelu"}, {"gelu", "gelu"}}),
          flag("use_bias", {"qkv_has_bias", "out_proj_has_bias", "mlp_has_bias"}, true),
          window(std::nullopt), norms_of_blocks(),
          hidden_dropout("residual_dropout", "embedding_dropout", 0.0),
          number("initializer_range", "init_method_std", 0.018042),
          number("attention_dropout", "attention_dropout", 0.0), dense(),
          written("use_cache", true)),
      .names = &kNames,
      .gguf = gguf,
  };
}

}  // namespace tapestry::architectures
