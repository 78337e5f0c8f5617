#include "interop/architectures/file_place.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "autograd/tensor/error.h"
#include "interop/architectures/hf_names.h"

namespace tapestry {

namespace {

using Names = std::pair<std::string_view, std::string_view>;  // logical, file

// Outside of layers.
constexpr std::array<Names, 3> kLlamaTop = {{{"tok_embeddings.", "model.embed_tokens."},
                                             {"final_norm.", "model.norm."},
                                             {"lm_head.", "lm_head."}}};
// Behind "layers.I." and "model.layers.I."; norms of queries and keys are Qwen3's.
constexpr std::array<Names, 11> kLlamaLayer = {{{"attention_norm.", "input_layernorm."},
                                                {"attention.wq.", "self_attn.q_proj."},
                                                {"attention.wk.", "self_attn.k_proj."},
                                                {"attention.wv.", "self_attn.v_proj."},
                                                {"attention.wo.", "self_attn.o_proj."},
                                                {"attention.q_norm.", "self_attn.q_norm."},
                                                {"attention.k_norm.", "self_attn.k_norm."},
                                                {"ffn_norm.", "post_attention_layernorm."},
                                                {"feed_forward.w_gate.", "mlp.gate_proj."},
                                                {"feed_forward.w_up.", "mlp.up_proj."},
                                                {"feed_forward.w_down.", "mlp.down_proj."}}};

// What Mixtral and Qwen2-MoE have beyond Llama, behind the same.
constexpr std::array<Names, 1> kMixtralLayer = {{{"moe.router.", "block_sparse_moe.gate."}}};
constexpr std::array<Names, 5> kQwen2MoeLayer = {
    {{"moe.router.", "mlp.gate."},
     {"moe.shared_expert_gate.", "mlp.shared_expert_gate."},
     {"moe.shared_expert.w_gate.", "mlp.shared_expert.gate_proj."},
     {"moe.shared_expert.w_up.", "mlp.shared_expert.up_proj."},
     {"moe.shared_expert.w_down.", "mlp.shared_expert.down_proj."}}};
constexpr std::string_view kExpertStem = "moe.experts.";
constexpr std::string_view kMixtralExpertStem = "block_sparse_moe.experts.";
constexpr std::string_view kQwen2MoeExpertStem = "mlp.experts.";
// Behind the stem and "E.".
constexpr std::array<Names, 3> kMixtralExpert = {
    {{"w_gate.", "w1."}, {"w_up.", "w3."}, {"w_down.", "w2."}}};
constexpr std::array<Names, 3> kQwen2MoeExpert = {
    {{"w_gate.", "gate_proj."}, {"w_up.", "up_proj."}, {"w_down.", "down_proj."}}};

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

constexpr std::array<Names, 4> kModulesTop = {
    {{"tok_embeddings.", "language_model.embedding.word_embeddings."},
     {"pos_embeddings.weight", "language_model.embedding.position_embeddings.embedding_table"},
     {"final_norm.", "language_model.encoder.final_norm."},
     {"lm_head.", "language_model.output_layer."}}};
// Behind "layers.I." and "language_model.encoder.layers.I.".
constexpr std::array<Names, 12> kModulesLayer = {{{"attention_norm.", "input_norm."},
                                                  {"attention_post_norm.", "attn_post_norm."},
                                                  {"attention.wq.", "attention.qkv_proj."},
                                                  {"attention.wk.", "attention.qkv_proj."},
                                                  {"attention.wv.", "attention.qkv_proj."},
                                                  {"attention.wo.", "attention.out_proj."},
                                                  {"ffn_norm.", "post_attention_norm."},
                                                  {"ffn_post_norm.", "ffn_post_norm."},
                                                  {"feed_forward.w_gate.", "mlp.mapping."},
                                                  {"feed_forward.w_up.", "mlp.mapping."},
                                                  {"feed_forward.w_down.", "mlp.projection."},
                                                  {"attention.", "attention."}}};
constexpr std::string_view kModulesPrefix = "language_model.";

// MindFormers' Llama of static graphs. Source: its convert_weight.py.
constexpr std::string_view kMindFormersTable = "model.tok_embeddings.embedding_weight";
constexpr std::array<Names, 3> kMindFormersTop = {{{"tok_embeddings.weight", kMindFormersTable},
                                                   {"final_norm.", "model.norm_out."},
                                                   {"lm_head.", "lm_head."}}};
// Behind "layers.I." and "model.layers.I.".
constexpr std::array<Names, 6> kMindFormersLayer = {{{"attention_norm.", "attention_norm."},
                                                     {"attention.", "attention."},
                                                     {"ffn_norm.", "ffn_norm."},
                                                     {"feed_forward.w_gate.", "feed_forward.w1."},
                                                     {"feed_forward.w_down.", "feed_forward.w2."},
                                                     {"feed_forward.w_up.", "feed_forward.w3."}}};

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

struct NumberedName {
  std::string_view number;  // "3."
  std::string_view rest;
};

// Splits the stem, "I." and the rest.
std::optional<NumberedName> split_numbered(std::string_view stem, std::string_view name) {
  const size_t dot = name.find('.', stem.size());
  if (!name.starts_with(stem) || dot == std::string_view::npos) {
    return std::nullopt;
  }
  return NumberedName{name.substr(stem.size(), dot + 1 - stem.size()), name.substr(dot + 1)};
}

std::optional<NumberedName> split_layer_name(std::string_view name) {
  return split_numbered("layers.", name);
}

// The name by the tables of a scheme, whose layers begin with `stem`.
template <size_t Top, size_t Layer>
std::optional<std::string> name_by(const std::array<Names, Top>& top,
                                   const std::array<Names, Layer>& in_layer,
                                   std::string_view stem,
                                   std::string_view logical) {
  const auto layer = split_layer_name(logical);
  if (!layer) {
    return with_prefix_of(top, logical);
  }
  const auto rest = with_prefix_of(in_layer, layer->rest);
  return rest ? std::optional(concat(stem, layer->number, *rest)) : std::nullopt;
}

// The name by the tables of a mixture of experts, else Llama's.
template <size_t Layer, size_t Expert>
std::optional<std::string> name_by_experts(const std::array<Names, Layer>& in_layer,
                                           const std::array<Names, Expert>& in_expert,
                                           std::string_view expert_stem,
                                           std::string_view logical) {
  constexpr std::string_view kStem = "model.layers.";
  if (const auto layer = split_layer_name(logical)) {
    if (const auto rest = with_prefix_of(in_layer, layer->rest)) {
      return concat(kStem, layer->number, *rest);
    }
    if (const auto expert = split_numbered(kExpertStem, layer->rest)) {
      const auto rest = with_prefix_of(in_expert, expert->rest);
      return rest ? std::optional(concat(kStem, layer->number, expert_stem, expert->number, *rest))
                  : std::nullopt;
    }
  }
  return name_by(kLlamaTop, kLlamaLayer, kStem, logical);
}

// The names of a language model without its head lack the name of the part that it is.
std::optional<std::string> bare(std::optional<std::string> name) {
  constexpr std::string_view kPart = "model.";
  if (name && name->starts_with(kPart)) {
    name->erase(0, kPart.size());
  }
  return name;
}

std::optional<std::string> name_in(NameScheme scheme, std::string_view logical) {
  switch (scheme) {
    case NameScheme::kLlamaBare:
      return bare(name_in(NameScheme::kLlama, logical));
    case NameScheme::kMixtralBare:
      return bare(name_in(NameScheme::kMixtral, logical));
    case NameScheme::kQwen2MoeBare:
      return bare(name_in(NameScheme::kQwen2Moe, logical));
    case NameScheme::kLlama:
      return name_by(kLlamaTop, kLlamaLayer, "model.layers.", logical);
    case NameScheme::kMixtral:
      return name_by_experts(kMixtralLayer, kMixtralExpert, kMixtralExpertStem, logical);
    case NameScheme::kQwen2Moe:
      return name_by_experts(kQwen2MoeLayer, kQwen2MoeExpert, kQwen2MoeExpertStem, logical);
    case NameScheme::kGpt2:
    case NameScheme::kGpt2Bare:
      return name_by(kGpt2Top, kGpt2Layer, "h.", logical);
    case NameScheme::kModules:
      return name_by(kModulesTop, kModulesLayer, "language_model.encoder.layers.", logical);
    case NameScheme::kMindFormersLlama:
      return name_by(kMindFormersTop, kMindFormersLayer, "model.layers.", logical);
    default:
      return std::nullopt;
  }
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

// The rows of queries, keys and values of a group come together, then those of the next; those of
// w_gate come before those of w_up.
FilePlace modules_place(const FileNames& names, std::string_view logical, const Shape& shape) {
  std::string name = name_in(NameScheme::kModules, logical).value_or(std::string(logical));
  if (names.layer_norm && name.find("norm.") != std::string::npos) {
    for (const auto& [ours, theirs] : {Names{".weight", ".gamma"}, Names{".bias", ".beta"}}) {
      if (name.ends_with(ours)) {
        name.replace(name.size() - ours.size(), ours.size(), theirs);
      }
    }
  }
  FilePlace place{.name = std::move(name), .shape = shape};
  if (shape.size() == 0) {
    return place;
  }
  if (const auto part = fused_part(logical)) {
    const int64_t queries = names.heads_per_group * names.head_size;
    place.block = *part == 0 ? queries : names.head_size;
    place.block_stride = queries + 2 * names.head_size;
    place.first = *part == 0 ? 0 : queries + (*part - 1) * names.head_size;
    place.shape[0] = shape[0] / place.block * place.block_stride;
  } else if (names.gated && logical.find(".feed_forward.w_gate.") != std::string::npos) {
    place.shape[0] = 2 * shape[0];
  } else if (names.gated && logical.find(".feed_forward.w_up.") != std::string::npos) {
    place.first = shape[0];
    place.shape[0] = 2 * shape[0];
  }
  return place;
}

bool has_prefix(const std::set<std::string>& names, const std::string& prefix) {
  const auto found = names.lower_bound(prefix);
  return found != names.end() && found->starts_with(prefix);
}

// Of files with the names of Llama and its like, with "model." or without.
NameScheme llama_scheme(const std::set<std::string>& names, bool without_part) {
  const auto any_has = [&](std::string_view part) {
    return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return name.find(part) != std::string::npos;
    });
  };
  if (any_has(concat(".", kMixtralExpertStem))) {
    return without_part ? NameScheme::kMixtralBare : NameScheme::kMixtral;
  }
  if (any_has(concat(".", kQwen2MoeExpertStem))) {
    return without_part ? NameScheme::kQwen2MoeBare : NameScheme::kQwen2Moe;
  }
  return without_part ? NameScheme::kLlamaBare : NameScheme::kLlama;
}

}  // namespace

FileNames::FileNames(NameScheme of, const TransformerConfig& config)
    : scheme(of),
      heads_per_group(config.num_attention_heads / config.num_query_groups),
      head_size(config.kv_channels.value()),
      gated(has_gated_mlp(config)),
      layer_norm(config.normalization == "LayerNorm") {}

NameScheme name_scheme(const TransformerConfig& config) {
  const std::string type = file_model_type(config);
  return type == "tapestry"    ? NameScheme::kLogical
         : type == "gpt2"      ? NameScheme::kGpt2
         : type == "mixtral"   ? NameScheme::kMixtral
         : type == "qwen2_moe" ? NameScheme::kQwen2Moe
                               : NameScheme::kLlama;
}

NameScheme name_scheme(const std::set<std::string>& names) {
  return has_prefix(names, std::string(kModulesPrefix))      ? NameScheme::kModules
         : has_prefix(names, std::string(kMindFormersTable)) ? NameScheme::kMindFormersLlama
         : has_prefix(names, "model.")                       ? llama_scheme(names, false)
         : has_prefix(names, "embed_tokens.")                ? llama_scheme(names, true)
         : has_prefix(names, "transformer.")                 ? NameScheme::kGpt2
         : has_prefix(names, "wte.")                         ? NameScheme::kGpt2Bare
                                                             : NameScheme::kLogical;
}

void check_experts_are_apart(const std::set<std::string>& names, const std::string& source) {
  for (const std::string& name : names) {
    for (const char* fused : {".experts.gate_up_proj", ".experts.down_proj"}) {
      check<ValueError>(
          !name.ends_with(fused) && !name.ends_with(concat(fused, ".weight")), source, ": ", name,
          " holds the matrices of all experts of a layer in one tensor, which is not read. Write "
          "the file anew with the matrices of each expert by themselves (mlp.experts.E."
          "gate_proj.weight, up_proj and down_proj; in gate_up_proj the gate's rows come before "
          "the others), as versions 4 of the transformers library save them");
    }
  }
}

FilePlace file_place(const FileNames& names, const std::string& logical, const Shape& shape) {
  const NameScheme scheme = names.scheme;
  if (scheme == NameScheme::kModules) {
    return modules_place(names, logical, shape);
  }
  std::optional<std::string> name = name_in(scheme, logical);
  if (scheme != NameScheme::kGpt2 && scheme != NameScheme::kGpt2Bare) {
    return {.name = std::move(name).value_or(logical), .shape = shape};
  }
  if (logical.starts_with("lm_head.")) {
    return gpt2_place(logical, logical, shape);
  }
  if (!name) {
    return {.name = logical, .shape = shape};
  }
  const bool prefixed = scheme == NameScheme::kGpt2;
  return gpt2_place(prefixed ? concat("transformer.", *name) : *std::move(name), logical, shape);
}

bool is_constant(NameScheme scheme, const std::string& name) {
  switch (scheme) {
    case NameScheme::kLlama:
    case NameScheme::kMixtral:
    case NameScheme::kQwen2Moe:
    case NameScheme::kLlamaBare:
    case NameScheme::kMixtralBare:
    case NameScheme::kQwen2MoeBare:
      return name.ends_with("rotary_emb.inv_freq");
    case NameScheme::kGpt2:
    case NameScheme::kGpt2Bare:
      return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
    case NameScheme::kModules:
      // Everything that is not of the model is of its optimizer, its schedule or its generators.
      return !name.starts_with(kModulesPrefix) ||
             name.find(".set_hidden_states") != std::string::npos;
    case NameScheme::kMindFormersLlama:
      return !name.starts_with("model.") && !name.starts_with("lm_head.");
    default:
      return false;
  }
}

}  // namespace tapestry
