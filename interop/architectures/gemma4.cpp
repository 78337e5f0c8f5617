// Gemma 4, text. Sources: Gemma4TextConfig and its model in transformers.
#include "interop/architectures/common_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture gemma4();

namespace {

// "vision" is about images alone.
class TextLooksBack final : public Rule {
 public:
  void read(hf::Fields& file) const override {
    const hf::Json* found = file.find(kMember);
    if (found != nullptr && *found != "vision" && *found != false) {
      file.finding(kMember, concat("expected null or \"vision\", got ", found->dump(),
                                   ": attention to later tokens, which is not supported"));
    }
  }
  RuleText text() const override {
    return {.refused = concat("`", kMember, ": all`: attention to later tokens")};
  }

 private:
  static constexpr const char* kMember = "use_bidirectional_attention";
};

TensorNames names() {
  TensorNames names =
      llama_names_with({{"attention_post_norm.", "post_attention_layernorm."},
                        {"ffn_norm.", "pre_feedforward_layernorm."},
                        {"ffn_post_norm.", "post_feedforward_layernorm."},
                        {"dense_post_norm.", "post_feedforward_layernorm_1."},
                        {"moe_norm.", "pre_feedforward_layernorm_2."},
                        {"moe_post_norm.", "post_feedforward_layernorm_2."},
                        {"per_layer_gate.", "per_layer_input_gate."},
                        {"per_layer_projection.", "per_layer_projection."},
                        {"per_layer_norm.", "post_per_layer_input_norm."},
                        {"layer_scalar", "layer_scalar"},
                        {"moe.router.scale.weight", "router.scale"},
                        {"moe.router.per_expert_scale.weight", "router.per_expert_scale"},
                        {"moe.router.", "router.proj."}},
                       "experts.", {});
  names.packed = true;
  for (const NamePair& row :
       {NamePair{"per_layer_embeddings.", "embed_tokens_per_layer."},
        NamePair{"per_layer_model_projection.", "per_layer_model_projection."},
        NamePair{"per_layer_projection_norm.", "per_layer_projection_norm."}}) {
    names.top.push_back(row);
  }
  return names;
}

}  // namespace

Architecture gemma4() {
  static const TensorNames kNames = names();
  constexpr int64_t kVocabulary = 262144;
  return {
      .model_type = "gemma4_text",
      .title = "Gemma 4, text",
      .classes = {"Gemma4ForCausalLM", "Gemma4TextModel"},
      .token_ids = {.bos = 2, .eos = {1}, .pad = 0},
      .tied = true,
      .rules = joined(
          size("vocab_size", "vocab_size", kVocabulary), size("hidden_size", "hidden_size", 2304),
          size("intermediate_size", "ffn_hidden_size", 9216),
          size("num_hidden_layers", "num_layers", 30),
          heads({.heads = 8, .groups = 4, .head_dim = 256}),
          size("max_position_embeddings", "max_position_embeddings", 131072),
          rotation(1e6, {.share = 0.25, .sliding_theta = 10000.0, .proportional = true}),
          fixed("normalization", "RMSNorm"), number("rms_norm_eps", "norm_epsilon", 1e-6),
          activation("hidden_activation", "gelu_pytorch_tanh", {{"gelu_pytorch_tanh", "fast_gelu"}},
                     /*gates=*/true),
          flag("attention_bias", {"qkv_has_bias", "out_proj_has_bias"}, false),
          fixed("mlp_has_bias", false),
          windows({.kind = Windows::Kind::kByList,
                   .by_default = 512,
                   .period = 6,
                   .last_is_full = true}),
          heads_by_kind(512), norms_of_blocks({.qk = true, .placement = "sandwich"}),
          fixed("v_layernorm", true), fixed("attention_scale", 1.0), fixed("layer_scalar", true),
          embeddings_by_root_of_width(), per_layer_embeddings(256, kVocabulary),
          optional_number("final_logit_softcapping", "logit_softcap", std::nullopt),
          std::make_shared<TextLooksBack>(), experts_beside_dense(),
          number("initializer_range", "init_method_std", 0.02),
          number("attention_dropout", "attention_dropout", 0.0), written("use_cache", true)),
      .names = &kNames,
      .no_gguf =
          "llama.cpp reads these models with a kind of tokenizer of its own, gemma4, which "
          "is not written",
  };
}

}  // namespace tapestry::architectures
