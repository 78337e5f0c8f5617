#include "interop/architectures/file_place.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "autograd/tensor/error.h"
#include "interop/architectures/hf_names.h"
#include "interop/architectures/registry.h"
#include "parallel_core/config/model_matrices.h"

namespace tapestry {

namespace {

using architectures::NamePair;
using architectures::TensorNames;
using Names = std::pair<std::string_view, std::string_view>;  // logical, file

constexpr int64_t kFused = 3;  // queries, keys and values
constexpr std::string_view kExpertStem = "moe.experts.";

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

std::optional<std::string> with_prefix_of(const std::vector<NamePair>& table,
                                          std::string_view name) {
  for (const auto& [logical, file] : table) {
    if (name.starts_with(logical)) {
      return concat(file, name.substr(logical.size()));
    }
  }
  return std::nullopt;
}

// Behind the part that all of the model but its output layer is of.
std::optional<std::string> name_in_part(const TensorNames& names, std::string_view logical) {
  const auto layer = split_layer_name(logical);
  if (!layer) {
    return with_prefix_of(names.top, logical);
  }
  if (const auto rest = with_prefix_of(names.layer, layer->rest)) {
    return concat(names.layers, layer->number, *rest);
  }
  const auto expert = split_numbered(kExpertStem, layer->rest);
  const auto rest = expert ? with_prefix_of(names.expert, expert->rest) : std::nullopt;
  return rest ? std::optional(
                    concat(names.layers, layer->number, names.experts, expert->number, *rest))
              : std::nullopt;
}

// The output layer has the same name everywhere, which is the logical one.
std::optional<std::string> name_in(const NameScheme& scheme, std::string_view logical) {
  if (scheme == NameScheme::kModules) {
    return name_by(kModulesTop, kModulesLayer, "language_model.encoder.layers.", logical);
  }
  if (scheme == NameScheme::kMindFormersLlama) {
    return name_by(kMindFormersTop, kMindFormersLayer, "model.layers.", logical);
  }
  if (scheme.table() == nullptr) {
    return std::nullopt;
  }
  const auto name = name_in_part(*scheme.table(), logical);
  return name ? std::optional(concat(scheme.bare() ? "" : scheme.part(), *name)) : std::nullopt;
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

// Which of the logical tensors of a layer that share a file's tensor this one is, and how many they
// are.
std::pair<int64_t, int64_t> part_of_shared(const TensorNames& names, std::string_view logical) {
  const auto layer = split_layer_name(logical);
  const auto own = std::find_if(names.layer.begin(), names.layer.end(), [&](const NamePair& pair) {
    return layer && layer->rest.starts_with(pair.logical);
  });
  if (own == names.layer.end()) {
    return {0, 1};
  }
  const auto shares = [&](const NamePair& pair) { return pair.file == own->file; };
  return {std::count_if(names.layer.begin(), own, shares),
          std::count_if(names.layer.begin(), names.layer.end(), shares)};
}

FilePlace family_place(const TensorNames& names,
                       std::string name,
                       std::string_view logical,
                       const Shape& shape) {
  FilePlace place{.name = std::move(name), .shape = shape};
  const auto [part, parts] = part_of_shared(names, logical);
  if (parts > 1 && shape.size() > 0) {
    place.first = part * shape[0];
    place.shape[0] = parts * shape[0];
  }
  // Tables of tokens and positions are [out, in] everywhere.
  place.transposed = names.transposed && shape.size() == 2 && logical.starts_with("layers.");
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

// The tables of all families, those of mixtures first: a mixture has the names of a dense model
// too.
std::vector<const TensorNames*> tables() {
  std::vector<const TensorNames*> out;
  for (const bool mixtures : {true, false}) {
    for (const auto& family : architectures::all()) {
      const TensorNames* names = family.names;
      if (names->experts.empty() != mixtures &&
          std::find(out.begin(), out.end(), names) == out.end()) {
        out.push_back(names);
      }
    }
  }
  return out;
}

// Whether the names are those of a file of the family, with the part or without.
std::optional<NameScheme> scheme_in(const TensorNames& table, const std::set<std::string>& names) {
  const std::string stem = concat(".", table.experts);
  const bool has_experts = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return name.find(stem) != std::string::npos;
  });
  if (!table.experts.empty() && !has_experts) {
    return std::nullopt;
  }
  if (has_prefix(names, std::string(table.part))) {
    return NameScheme(&table);
  }
  const std::string first = with_prefix_of(table.top, "tok_embeddings.").value_or("");
  return has_prefix(names, first) ? std::optional(NameScheme(&table, /*bare=*/true)) : std::nullopt;
}

}  // namespace

FileNames::FileNames(NameScheme of, const TransformerConfig& config)
    : scheme(of), layer_norm(config.normalization == "LayerNorm") {
  const LayerWidths widths = layer_widths(config);
  heads_per_group = widths.heads / widths.groups;
  head_size = widths.channels;
  gated = widths.gates == 2;
}

bool NameScheme::transposed() const { return table_ != nullptr && table_->transposed; }

std::string_view NameScheme::part() const {
  return table_ == nullptr ? std::string_view() : table_->part;
}

NameScheme name_scheme(const TransformerConfig& config) {
  const architectures::Architecture* family = architectures::of(config);
  return family == nullptr ? NameScheme::kLogical : NameScheme(family->names);
}

NameScheme name_scheme_of(std::string_view model_type) {
  const architectures::Architecture* family = architectures::find(model_type);
  check<ValueError>(family != nullptr, "no family has the model_type \"", model_type,
                    "\"; known are ", architectures::known_types());
  return NameScheme(family->names);
}

NameScheme name_scheme(const std::set<std::string>& names) {
  if (has_prefix(names, std::string(kModulesPrefix))) {
    return NameScheme::kModules;
  }
  if (has_prefix(names, std::string(kMindFormersTable))) {
    return NameScheme::kMindFormersLlama;
  }
  for (const TensorNames* table : tables()) {
    if (const auto scheme = scheme_in(*table, names)) {
      return *scheme;
    }
  }
  return NameScheme::kLogical;
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
  if (!name || scheme.table() == nullptr) {
    return {.name = std::move(name).value_or(logical), .shape = shape};
  }
  return family_place(*scheme.table(), *std::move(name), logical, shape);
}

bool is_constant(NameScheme scheme, const std::string& name) {
  if (scheme == NameScheme::kModules) {
    // Everything that is not of the model is of its optimizer, its schedule or its generators.
    return !name.starts_with(kModulesPrefix) ||
           name.find(".set_hidden_states") != std::string::npos;
  }
  if (scheme == NameScheme::kMindFormersLlama) {
    return !name.starts_with("model.") && !name.starts_with("lm_head.");
  }
  return scheme.table() != nullptr &&
         std::any_of(scheme.table()->constants.begin(), scheme.table()->constants.end(),
                     [&](std::string_view end) { return name.ends_with(end); });
}

}  // namespace tapestry
