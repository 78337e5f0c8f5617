#include "parallel_core/dist_checkpointing/file_place.h"

#include <array>
#include <optional>
#include <utility>

#include "autograd/tensor/error.h"
#include "parallel_core/dist_checkpointing/hf_names.h"

namespace tapestry {

namespace {

using Names = std::pair<std::string_view, std::string_view>;  // logical, file

// Outside of layers.
constexpr std::array<Names, 3> kLlamaTop = {{{"tok_embeddings.", "model.embed_tokens."},
                                             {"final_norm.", "model.norm."},
                                             {"lm_head.", "lm_head."}}};
// Behind "layers.I." and "model.layers.I.".
constexpr std::array<Names, 9> kLlamaLayer = {{{"attention_norm.", "input_layernorm."},
                                               {"attention.wq.", "self_attn.q_proj."},
                                               {"attention.wk.", "self_attn.k_proj."},
                                               {"attention.wv.", "self_attn.v_proj."},
                                               {"attention.wo.", "self_attn.o_proj."},
                                               {"ffn_norm.", "post_attention_layernorm."},
                                               {"feed_forward.w_gate.", "mlp.gate_proj."},
                                               {"feed_forward.w_up.", "mlp.up_proj."},
                                               {"feed_forward.w_down.", "mlp.down_proj."}}};

constexpr std::array<Names, 3> kGpt2Top = {
    {{"tok_embeddings.", "wte."}, {"pos_embeddings.", "wpe."}, {"final_norm.", "ln_f."}}};
// Behind "layers.I." and "h.I.". Queries, keys and values share a matrix, in this order.
constexpr std::array<Names, 8> kGpt2Layer = {{{"attention_norm.", "ln_1."},
                                              {"attention.wq.", "attn.c_attn."},
                                              {"attention.wk.", "attn.c_attn."},
                                              {"attention.wv.", "attn.c_attn."},
                                              {"attention.wo.", "attn.c_proj."},
                                              {"ffn_norm.", "ln_2."},
                                              {"feed_forward.w_up.", "mlp.c_fc."},
                                              {"feed_forward.w_down.", "mlp.c_proj."}}};
constexpr int64_t kFused = 3;

// Replaces the first prefix of a table that fits.
template <size_t N>
std::optional<std::string> with_prefix_of(const std::array<Names, N>& table,
                                          std::string_view name) {
  for (const auto& [logical, file] : table) {
    if (name.starts_with(logical)) {
      return concat(file, name.substr(logical.size()));
    }
  }
  return std::nullopt;
}

struct LayerPlace {
  std::string_view number;  // "3."
  std::string_view rest;
};

// Splits "layers.I.REST".
std::optional<LayerPlace> split_layer_name(std::string_view name) {
  constexpr std::string_view kStem = "layers.";
  const size_t dot = name.find('.', kStem.size());
  if (!name.starts_with(kStem) || dot == std::string_view::npos) {
    return std::nullopt;
  }
  return LayerPlace{name.substr(kStem.size(), dot + 1 - kStem.size()), name.substr(dot + 1)};
}

std::optional<std::string> llama_name(std::string_view logical) {
  const auto layer = split_layer_name(logical);
  if (!layer) {
    return with_prefix_of(kLlamaTop, logical);
  }
  const auto rest = with_prefix_of(kLlamaLayer, layer->rest);
  return rest ? std::optional(concat("model.layers.", layer->number, *rest)) : std::nullopt;
}

std::optional<std::string> gpt2_name(std::string_view logical) {
  const auto layer = split_layer_name(logical);
  if (!layer) {
    return with_prefix_of(kGpt2Top, logical);
  }
  const auto rest = with_prefix_of(kGpt2Layer, layer->rest);
  return rest ? std::optional(concat("h.", layer->number, *rest)) : std::nullopt;
}

// Which part of the fused matrix: 0 queries, 1 keys, 2 values; none for other tensors.
std::optional<int64_t> fused_part(std::string_view logical) {
  constexpr std::array<std::string_view, kFused> kParts = {".attention.wq.", ".attention.wk.",
                                                           ".attention.wv."};
  for (size_t i = 0; i < kParts.size(); ++i) {
    if (logical.find(kParts[i]) != std::string_view::npos) {
      return static_cast<int64_t>(i);
    }
  }
  return std::nullopt;
}

FilePlace gpt2_place(std::string name, std::string_view logical, const Shape& shape) {
  FilePlace place{.name = std::move(name), .shape = shape};
  if (const auto part = fused_part(logical); part && shape.size() > 0) {
    place.first = *part * shape[0];
    place.shape[0] = kFused * shape[0];
  }
  // Of matrices only the tables of tokens and positions are [out, in].
  place.transposed = shape.size() == 2 && logical.starts_with("layers.");
  if (place.transposed) {
    std::swap(place.shape[0], place.shape[1]);
  }
  return place;
}

bool has_prefix(const std::set<std::string>& names, const std::string& prefix) {
  const auto found = names.lower_bound(prefix);
  return found != names.end() && found->starts_with(prefix);
}

}  // namespace

NameScheme name_scheme(const TransformerConfig& config) {
  const std::string type = file_model_type(config);
  return type == "tapestry" ? NameScheme::kLogical
         : type == "gpt2"   ? NameScheme::kGpt2
                            : NameScheme::kLlama;
}

NameScheme name_scheme(const std::set<std::string>& names) {
  return has_prefix(names, "model.")         ? NameScheme::kLlama
         : has_prefix(names, "transformer.") ? NameScheme::kGpt2
         : has_prefix(names, "wte.")         ? NameScheme::kGpt2Bare
                                             : NameScheme::kLogical;
}

FilePlace file_place(NameScheme scheme, const std::string& logical, const Shape& shape) {
  std::optional<std::string> name = logical;
  if (scheme == NameScheme::kLlama) {
    name = llama_name(logical);
  } else if (scheme != NameScheme::kLogical) {
    name = logical.starts_with("lm_head.") ? logical : gpt2_name(logical);
  }
  if (scheme == NameScheme::kLogical || scheme == NameScheme::kLlama || !name) {
    return {.name = std::move(name).value_or(logical), .shape = shape};
  }
  const bool prefixed = scheme == NameScheme::kGpt2 && !logical.starts_with("lm_head.");
  return gpt2_place(prefixed ? concat("transformer.", *name) : *std::move(name), logical, shape);
}

bool is_constant(NameScheme scheme, const std::string& name) {
  switch (scheme) {
    case NameScheme::kLlama:
      return name.ends_with("rotary_emb.inv_freq");
    case NameScheme::kGpt2:
    case NameScheme::kGpt2Bare:
      return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
    default:
      return false;
  }
}

}  // namespace tapestry
