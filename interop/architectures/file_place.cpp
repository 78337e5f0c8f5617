#include "interop/architectures/file_place.h"

#include <algorithm>
#include <array>
#include <charconv>
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
using Names = NamePair;

constexpr std::string_view kExpertStem = "moe.experts.";

constexpr std::array<Names, 9> kModulesTop = {
    {{"per_layer_embeddings.", "language_model.embedding.per_layer.table."},
     {"per_layer_model_projection.", "language_model.embedding.per_layer.projection."},
     {"per_layer_projection_norm.", "language_model.embedding.per_layer.norm."},
     {"embedding_norm.", "language_model.embedding.norm."},
     {"tok_embeddings.", "language_model.embedding.word_embeddings."},
     {"pos_embeddings.weight", "language_model.embedding.position_embeddings.embedding_table"},
     {"final_norm.", "language_model.encoder.final_norm."},
     {"lm_head.", "language_model.output_layer."},
     {"score.", "language_model.score."}}};
// Behind "layers.I." and "language_model.encoder.layers.I.".
// Logical tensors that are of one parameter stand in the order of its rows, but for those of
// qkv_proj.
constexpr std::array<Names, 63> kModulesLayer = {
    {{"linear_attention.wq.", "linear_attention.in_proj."},
     {"linear_attention.wk.", "linear_attention.in_proj."},
     {"linear_attention.wv.", "linear_attention.in_proj."},
     {"linear_attention.wz.", "linear_attention.in_proj."},
     {"linear_attention.wb.", "linear_attention.in_proj."},
     {"linear_attention.wa.", "linear_attention.in_proj."},
     {"linear_attention.conv_q.", "linear_attention.conv."},
     {"linear_attention.conv_k.", "linear_attention.conv."},
     {"linear_attention.conv_v.", "linear_attention.conv."},
     {"linear_attention.A_log.weight", "linear_attention.A_log"},
     {"linear_attention.dt_bias.weight", "linear_attention.dt_bias"},
     {"linear_attention.norm.weight", "linear_attention.norm"},
     {"linear_attention.wo.", "linear_attention.out_proj."},
     {"short_conv.wb.", "short_conv.in_proj."},
     {"short_conv.wc.", "short_conv.in_proj."},
     {"short_conv.wx.", "short_conv.in_proj."},
     {"short_conv.conv.", "short_conv.conv."},
     {"short_conv.wo.", "short_conv.out_proj."},
     {"mamba.wz.", "mamba.in_proj."},
     {"mamba.wx.", "mamba.in_proj."},
     {"mamba.wB.", "mamba.in_proj."},
     {"mamba.wC.", "mamba.in_proj."},
     {"mamba.wdt.", "mamba.in_proj."},
     {"mamba.conv_x.", "mamba.conv."},
     {"mamba.conv_B.", "mamba.conv."},
     {"mamba.conv_C.", "mamba.conv."},
     {"mamba.A_log.weight", "mamba.A_log"},
     {"mamba.D.weight", "mamba.D"},
     {"mamba.dt_bias.weight", "mamba.dt_bias"},
     {"mamba.norm.weight", "mamba.norm"},
     {"mamba.wo.", "mamba.out_proj."},
     {"attention.wg.", "attention.qkv_proj."},
     {"attention.sinks.weight", "attention.sinks"},
     {"dense_post_norm.", "dense_post_norm."},
     {"moe_norm.", "moe_norm."},
     {"moe_post_norm.", "moe_post_norm."},
     {"per_layer_gate.", "per_layer_gate."},
     {"per_layer_projection.", "per_layer_projection."},
     {"per_layer_norm.", "per_layer_norm."},
     {"layer_scalar", "layer_scalar"},
     {"hyper_connection.attention.alpha.weight", "attention_hyper_connection.alpha"},
     {"hyper_connection.attention.", "attention_hyper_connection."},
     {"hyper_connection.feed_forward.alpha.weight", "mlp_hyper_connection.alpha"},
     {"hyper_connection.feed_forward.", "mlp_hyper_connection."},
     {"mtp.", "mtp."},
     {"attention.wq_a.", "attention.q_a_proj."},
     {"attention.wq_b.", "attention.q_b_proj."},
     {"attention.wkv_a.", "attention.kv_a_proj."},
     {"attention.wkv_b.", "attention.kv_b_proj."},
     {"feed_forward.alpha_p.weight", "mlp.alpha_p"},
     {"feed_forward.alpha_n.weight", "mlp.alpha_n"},
     {"attention_norm.", "input_norm."},
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
constexpr std::string_view kModulesAhead = "language_model.mtp.layers.";

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

// Of "3."; -1 for other text.
int64_t number_of(const std::optional<NumberedName>& name) {
  if (!name) {
    return -1;
  }
  int64_t number = 0;
  const char* end = name->number.data() + name->number.size();
  const auto parsed = std::from_chars(name->number.data(), end, number);
  return parsed.ec == std::errc() && parsed.ptr + 1 == end ? number : -1;
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
  const std::string_view number = expert && !names.stacked ? expert->number : std::string_view();
  return rest ? std::optional(concat(names.layers, layer->number, names.experts, number, *rest))
              : std::nullopt;
}

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
  constexpr std::string_view kHead = "lm_head.";
  if (logical.starts_with(kHead)) {
    return concat(scheme.table()->head, logical.substr(kHead.size()));
  }
  const auto name = name_in_part(*scheme.table(), logical);
  return name ? std::optional(concat(scheme.bare() ? "" : scheme.part(), *name)) : std::nullopt;
}

// Which part of the fused matrix: 0 queries, 1 keys, 2 values, 3 gates of the output; none for
// other tensors.
std::optional<int64_t> fused_part(std::string_view logical) {
  constexpr std::array<std::string_view, 4> kParts = {".attention.wq.", ".attention.wk.",
                                                      ".attention.wv.", ".attention.wg."};
  for (size_t i = 0; i < kParts.size(); ++i) {
    if (logical.find(kParts[i]) != std::string_view::npos) {
      return static_cast<int64_t>(i);
    }
  }
  return std::nullopt;
}

// Where a logical tensor is in one that it shares: its rows and those of all parts.
struct SharedPart {
  int64_t first = 0;
  int64_t own = 1;
  int64_t all = 1;
  int64_t groups = 1;  // in each of which there is the same share of each part
};

int64_t groups_of(const FileNames& names, const NamePair& pair) {
  const TensorNames& table = *names.scheme.table();
  for (const architectures::GroupedFile& one : table.grouped_files) {
    if (one.file == pair.file) {
      return one.groups == architectures::RowGroups::kHeads ? names.heads : names.linear_keys;
    }
  }
  return 1;
}

// `rows`: of the tensor itself. `table`: names behind "layers.I.".
template <class Table>
SharedPart part_of_shared(const FileNames& names,
                          const Table& table,
                          std::string_view logical,
                          int64_t rows) {
  const auto layer = split_layer_name(logical);
  const auto own = std::find_if(table.begin(), table.end(), [&](const NamePair& pair) {
    return layer && layer->rest.starts_with(pair.logical);
  });
  SharedPart part{.all = 0};
  const bool is_known = own != table.end() && names.rows.contains(own->logical);
  for (auto pair = table.begin(); own != table.end() && pair != table.end(); ++pair) {
    if (pair->file == own->file) {
      // Parts that the model does not have are not there. Of those of another model, or without a
      // configuration, all count as equally large.
      auto known = names.rows.find(concat("layers.", layer->number, pair->logical));
      known = known == names.rows.end() ? names.rows.find(pair->logical) : known;
      const bool counts = (known != names.rows.end()) == is_known;
      const int64_t count = pair == own ? rows : !counts ? 0 : is_known ? known->second : rows;
      part.first += pair < own ? count : 0;
      part.own = pair == own ? count : part.own;
      part.all += count;
    }
  }
  return part.all > part.own ? part : SharedPart{.first = 0, .own = rows, .all = rows};
}

// The same in a family's files, with the groups that the rows come in.
SharedPart part_of_family(const FileNames& names, std::string_view logical, int64_t rows) {
  const TensorNames& table = *names.scheme.table();
  SharedPart part = part_of_shared(names, table.layer, logical, rows);
  if (part.all == part.own) {
    return part;
  }
  const auto layer = split_layer_name(logical);
  const auto own = std::find_if(table.layer.begin(), table.layer.end(), [&](const NamePair& pair) {
    return layer->rest.starts_with(pair.logical);
  });
  const bool by_group = table.grouped && fused_part(logical);
  part.groups = by_group ? names.heads / names.heads_per_group : groups_of(names, *own);
  return part;
}

void place_shared(const SharedPart& part, FilePlace& place) {
  if (part.all > part.own) {
    place.first = part.first;
    place.shape[0] = part.all;
  }
}

// The rows of all parts come together group by group.
void place_in_groups(const SharedPart& part, FilePlace& place) {
  place.first = part.first / part.groups;
  place.block = part.own / part.groups;
  place.block_stride = part.all / part.groups;
  place.shape[0] = part.all;
}

// A matrix, or the bias, of one of the experts that share a tensor; nothing for other tensors.
std::optional<FilePlace> stacked_place(const FileNames& names,
                                       const std::string& name,
                                       std::string_view logical,
                                       const Shape& shape) {
  const TensorNames& table = *names.scheme.table();
  const auto layer = split_layer_name(logical);
  const auto expert = layer ? split_numbered(kExpertStem, layer->rest) : std::nullopt;
  if (!table.stacked || !expert || shape.size() == 0) {
    return std::nullopt;
  }
  const int64_t number = number_of(expert);
  int64_t parts = 0;  // that alternate
  int64_t part = 0;
  const auto own = std::find_if(table.expert.begin(), table.expert.end(), [&](const auto& pair) {
    return expert->rest.starts_with(pair.logical);
  });
  for (const NamePair& pair : table.expert) {
    part = &pair == &*own ? parts : part;
    parts += pair.file == own->file ? 1 : 0;
  }
  const int64_t outputs = shape[0] * parts;
  const bool matrix = shape.size() == 2;
  const Shape whole =
      matrix ? Shape{names.experts, shape[1], outputs} : Shape{names.experts, outputs};
  return FilePlace{
      .name = name,
      .shape = whole,
      .strides = FilePlace::Strides{number * whole.numel() / names.experts + part, parts, outputs}};
}

// The same where gates and the other half lie one below the other, [E, rows, columns].
std::optional<FilePlace> packed_place(const FileNames& names,
                                      std::string_view logical,
                                      const Shape& shape) {
  const NameScheme& scheme = names.scheme;
  const auto layer = split_layer_name(logical);
  const auto expert = layer ? split_numbered(kExpertStem, layer->rest) : std::nullopt;
  if (!scheme.is_packed() || !expert || shape.size() != 2) {
    return std::nullopt;
  }
  const int64_t number = number_of(expert);
  const TensorNames& table = *scheme.table();
  const bool down = expert->rest.starts_with("w_down.");
  const bool second = names.gated && expert->rest.starts_with("w_up.");
  const int64_t rows = shape[0] * (!down && names.gated ? 2 : 1);
  const std::string stem = concat(scheme.bare() ? "" : table.part, table.layers, layer->number);
  return FilePlace{
      .name = concat(stem, table.experts, down ? table.packed_down : table.packed_gate_up,
                     scheme.packed_ending()),
      .shape = {names.experts, rows, shape[1]},
      .strides =
          FilePlace::Strides{(number * rows + (second ? shape[0] : 0)) * shape[1], shape[1], 1}};
}

FilePlace family_place(const FileNames& names,
                       std::string name,
                       std::string_view logical,
                       const Shape& shape) {
  if (const auto place = stacked_place(names, name, logical, shape)) {
    return *place;
  }
  const TensorNames& table = *names.scheme.table();
  FilePlace place{.name = std::move(name), .shape = shape};
  if (shape.size() > 0) {
    const SharedPart part = part_of_family(names, logical, shape[0]);
    if (part.groups > 1) {
      place_in_groups(part, place);
    } else {
      place_shared(part, place);
    }
  }
  // Tables of tokens and positions are [out, in] everywhere.
  place.transposed = table.transposed && shape.size() == 2 && logical.starts_with("layers.");
  if (place.transposed) {
    std::swap(place.shape[0], place.shape[1]);
  }
  return place;
}

// Which norm of a head by itself it is ("layers.0.attention.q_norm.3.weight"): all are rows of one
// parameter there.
struct HeadNorm {
  std::string_view name;  // without the number
  int64_t head = 0;
  bool of_queries = false;
};
std::optional<HeadNorm> head_norm_of(std::string_view logical) {
  for (const bool of_queries : {true, false}) {
    const std::string_view stem = of_queries ? ".attention.q_norm." : ".attention.k_norm.";
    const size_t at = logical.find(stem);
    int64_t head = 0;
    if (at != std::string_view::npos &&
        std::from_chars(logical.data() + at + stem.size(), logical.data() + logical.size(), head)
                .ec == std::errc()) {
      return HeadNorm{logical.substr(0, at + stem.size()), head, of_queries};
    }
  }
  return std::nullopt;
}

// Layers that predict further tokens are in a list of their own, each around an ordinary layer.
std::string in_own_list(const FileNames& names, std::string name) {
  const auto layer = split_numbered("language_model.encoder.layers.", name);
  const int64_t number = number_of(layer);
  if (number < 0 || names.layers == 0 || number < names.layers) {
    return name;
  }
  constexpr std::string_view kOwn = "mtp.";
  const bool own = layer->rest.starts_with(kOwn);
  return concat(kModulesAhead, number - names.layers, own ? "." : ".transformer_layer.",
                own ? layer->rest.substr(kOwn.size()) : layer->rest);
}

FileNames::LayerHeads heads_of(const FileNames& names, int64_t layer) {
  return layer >= 0 && layer < std::ssize(names.of_layers)
             ? names.of_layers[static_cast<size_t>(layer)]
             : FileNames::LayerHeads{names.heads_per_group, names.head_size};
}

// Queries, keys and values are grouped; the rows of w_gate come before those of w_up.
FilePlace modules_place(const FileNames& names, std::string_view logical, const Shape& shape) {
  if (const auto norm = head_norm_of(logical); norm && shape.size() == 1) {
    const int64_t per_group = heads_of(names, number_of(split_layer_name(logical))).heads_per_group;
    const int64_t heads = norm->of_queries ? names.heads : names.heads / per_group;
    return {
        .name = concat(in_own_list(names, *name_in(NameScheme::kModules, norm->name)), "weight"),
        .shape = {heads, shape[0]},
        .strides = FilePlace::Strides{norm->head * shape[0], 1, 1}};
  }
  std::string name =
      in_own_list(names, name_in(NameScheme::kModules, logical).value_or(std::string(logical)));
  constexpr std::string_view kMlp = ".mlp.";
  if (const size_t at = name.find(kMlp); names.experts_beside_dense && at != std::string::npos) {
    name.replace(at, kMlp.size(), ".dense_mlp.");
  }
  constexpr std::string_view kFusedHeads = "attention.qkv_proj.";
  if (const size_t at = name.find(kFusedHeads); names.latent && at != std::string::npos) {
    name.replace(at, kFusedHeads.size(), "attention.q_proj.");
  }
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
  const auto part = names.latent ? std::nullopt : fused_part(logical);
  if (part) {
    // Of each group its queries, with their gates behind them, a key and a value.
    const FileNames::LayerHeads heads = heads_of(names, number_of(split_layer_name(logical)));
    const int64_t groups = names.heads / heads.heads_per_group;
    const int64_t queries = names.heads * heads.head_size;
    const int64_t keys = groups * heads.head_size * heads.keys;
    const int64_t values = groups * heads.head_size * heads.values;
    const int64_t gates = names.gates ? queries : 0;
    const std::array<int64_t, 4> firsts = {0, queries + gates, queries + gates + keys, queries};
    const std::array<int64_t, 4> own = {queries, keys, values, queries};
    place_in_groups({.first = firsts[static_cast<size_t>(*part)],
                     .own = own[static_cast<size_t>(*part)],
                     .all = queries + gates + keys + values,
                     .groups = groups},
                    place);
  } else if (fused_part(logical) == std::nullopt) {
    place_shared(part_of_shared(names, kModulesLayer, logical, shape[0]), place);
  }
  return place;
}

bool has_prefix(const std::set<std::string>& names, const std::string& prefix) {
  const auto found = names.lower_bound(prefix);
  return found != names.end() && found->starts_with(prefix);
}

// The different names of a file, with # for the numbers of layers and experts.
std::set<std::string> without_numbers(const std::set<std::string>& names) {
  std::set<std::string> out;
  for (const std::string& name : names) {
    std::string kind;
    for (size_t begin = 0; begin <= name.size();) {
      const size_t dot = std::min(name.find('.', begin), name.size());
      const std::string_view word = std::string_view(name).substr(begin, dot - begin);
      const bool number = !word.empty() && word.find_first_not_of("0123456789") == word.npos;
      kind += concat(begin == 0 ? "" : ".", number ? "#" : word);
      begin = dot + 1;
    }
    out.insert(std::move(kind));
  }
  return out;
}

// Whether the name is that of a row's weight or bias, or a whole row.
bool is_in(const std::vector<NamePair>& table, std::string_view name) {
  return std::any_of(table.begin(), table.end(), [&](const NamePair& pair) {
    if (!name.starts_with(pair.file)) {
      return false;
    }
    const std::string_view rest = name.substr(pair.file.size());
    const bool is_numbered = rest.starts_with("#.");
    return pair.file.ends_with('.')
               ? rest == "weight" || rest == "bias" || (is_numbered && rest.substr(2) == "weight")
               : rest.empty();
  });
}

// Whether the table has a name behind the part, its numbers being #.
bool is_known(const TensorNames& table, std::string_view name) {
  constexpr std::string_view kNumber = "#.";
  const auto follows = [&](std::string_view stem) {
    const bool fits = name.starts_with(stem) && name.substr(stem.size()).starts_with(kNumber);
    name.remove_prefix(fits ? stem.size() + kNumber.size() : 0);
    return fits;
  };
  if (!follows(table.layers)) {
    return is_in(table.top, name);
  }
  const auto is_packed = [&] {
    const bool has_experts = !table.experts.empty() && name.starts_with(table.experts);
    const std::string_view rest = has_experts ? name.substr(table.experts.size()) : "";
    return !rest.empty() &&
           (rest.starts_with(table.packed_gate_up) || rest.starts_with(table.packed_down));
  };
  return is_in(table.layer, name) || (!table.stacked && is_packed()) ||
         (table.stacked && name.starts_with(table.experts) &&
          is_in(table.expert, name.substr(table.experts.size()))) ||
         (!table.experts.empty() && follows(table.experts) && is_in(table.expert, name));
}

// How the names of a file would be read by a family's table, with the part or without; nothing if
// they have neither.
std::optional<NameScheme> scheme_in(const TensorNames& table, const std::set<std::string>& names) {
  if (has_prefix(names, std::string(table.part))) {
    return NameScheme(&table);
  }
  const std::string first = with_prefix_of(table.top, "tok_embeddings.").value_or("");
  return has_prefix(names, first) ? std::optional(NameScheme(&table, /*bare=*/true)) : std::nullopt;
}

}  // namespace

FileNames::FileNames(NameScheme of, const TransformerConfig& config)
    : scheme(of),
      layer_norm(config.normalization == "LayerNorm"),
      layers(config.num_layers),
      ahead(config.mtp_num_layers),
      more_layers(of.table() != nullptr && of.table()->more_layers),
      tied(!config.untie_embeddings_and_output_weights) {
  const LayerWidths widths = layer_widths(config, 0);
  heads_per_group = widths.heads / widths.groups;
  head_size = widths.channels;
  gated = widths.gates == 2;
  experts = config.moe.num_experts;
  heads = widths.heads;
  latent = config.multi_latent_attention;
  gates = config.attention_output_gate;
  linear_keys = config.linear_attention.num_key_heads;
  experts_beside_dense = config.moe.num_experts > 1 && config.moe.moe_beside_dense;
  const bool differs = config.full_attention_kv_channels ||
                       config.full_attention_num_query_groups ||
                       config.full_attention_value_is_key || config.num_kv_shared_layers > 0;
  const auto add_rows = [&](int64_t layer, bool of_all) {
    const std::string stem = concat("layers.", layer, ".");
    for (const ModelMatrix& matrix : layer_matrices(config, layer)) {
      if (matrix.experts == 0) {
        rows[concat(of_all ? matrix.name.substr(stem.size()) : matrix.name, ".")] = matrix.shape[0];
      }
    }
  };
  for (const AlikeLayers& layers : alike_layers(config)) {
    add_rows(layers.layer, true);
  }
  for (int64_t layer = 0; differs && layer < config.num_layers; ++layer) {
    add_rows(layer, false);
    const LayerWidths own = layer_widths(config, layer);
    const int64_t keys = keys_from(config, layer) ? 0 : 1;
    of_layers.push_back({.heads_per_group = own.heads / own.groups,
                         .head_size = own.channels,
                         .keys = keys,
                         .values = value_is_key(config, layer) ? 0 : keys});
  }
}

FileNames::FileNames(const std::set<std::string>& names, const TransformerConfig& config)
    : FileNames(name_scheme(names), config) {
  // In names that any model may have, a layer too many is a mistake unless it is one of these.
  more_layers = more_layers ||
                (layers > 0 && (scheme == NameScheme::kLogical || scheme == NameScheme::kModules) &&
                 names.contains(joining_matrix_name(*this, 0)));
}

bool NameScheme::transposed() const { return table_ != nullptr && table_->transposed; }

std::string_view NameScheme::part() const {
  return table_ == nullptr ? std::string_view() : table_->part;
}

namespace {

// Experts of some families are packed in every file.
NameScheme scheme_of(const TensorNames* table) {
  return table->packed ? NameScheme(table).packed(table->packed_ending) : NameScheme(table);
}

}  // namespace

NameScheme name_scheme(const TransformerConfig& config) {
  const architectures::Architecture* family = architectures::of(config);
  return family == nullptr ? NameScheme::kLogical : scheme_of(family->names);
}

NameScheme name_scheme_of(std::string_view model_type) {
  const architectures::Architecture* family = architectures::find(model_type);
  check<ValueError>(family != nullptr, "no family has the model_type \"", model_type,
                    "\"; known are ", architectures::known_types());
  return scheme_of(family->names);
}

NameScheme name_scheme(const std::set<std::string>& names) {
  if (has_prefix(names, std::string(kModulesPrefix))) {
    return NameScheme::kModules;
  }
  if (has_prefix(names, std::string(kMindFormersTable))) {
    return NameScheme::kMindFormersLlama;
  }
  // Of a family whose table has the most of them; several may have the same table.
  const std::set<std::string> kinds = without_numbers(names);
  NameScheme best = NameScheme::kLogical;
  int64_t most = -1;
  for (const auto& family : architectures::all()) {
    const auto scheme = scheme_in(*family.names, names);
    if (!scheme) {
      continue;
    }
    const std::string_view part = scheme->bare() ? std::string_view() : family.names->part;
    const int64_t known = std::count_if(kinds.begin(), kinds.end(), [&](std::string_view kind) {
      return kind.starts_with(part) && is_known(*family.names, kind.substr(part.size()));
    });
    if (known > most) {
      best = *scheme;
      most = known;
    }
  }
  if (best.table() == nullptr || best.table()->stacked || best.table()->experts.empty()) {
    return best;
  }
  if (best.table()->packed) {
    return best.packed(best.table()->packed_ending);
  }
  for (const std::string_view ending : {std::string_view(), std::string_view(".weight")}) {
    const bool packed = std::any_of(kinds.begin(), kinds.end(), [&](const std::string& kind) {
      return kind.ends_with(concat(best.table()->experts, "gate_up_proj", ending));
    });
    if (packed) {
      return best.packed(ending);
    }
  }
  return best;
}

bool stacks_experts(const NameScheme& scheme) {
  return scheme.table() != nullptr && scheme.table()->stacked;
}

FilePlace file_place(const FileNames& names, const std::string& logical, const Shape& shape) {
  const NameScheme scheme = names.scheme;
  if (scheme == NameScheme::kModules) {
    return modules_place(names, logical, shape);
  }
  if (const auto place = packed_place(names, logical, shape)) {
    return *place;
  }
  std::optional<std::string> name = name_in(scheme, logical);
  if (!name || scheme.table() == nullptr) {
    return {.name = std::move(name).value_or(logical), .shape = shape};
  }
  return family_place(names, *std::move(name), logical, shape);
}

std::map<std::string, double> fixed_numbers(const FileNames& names) {
  std::map<std::string, double> out;
  const TensorNames* table = names.scheme.table();
  for (int64_t layer = 0; table != nullptr && layer < names.layers; ++layer) {
    for (const architectures::FixedNumber& number : table->fixed_numbers) {
      out[concat(names.scheme.bare() ? "" : table->part, table->layers, layer, ".", number.name)] =
          number.value;
    }
  }
  return out;
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
  const TensorNames* table = scheme.table();
  return table != nullptr &&
         (std::any_of(table->constants.begin(), table->constants.end(),
                      [&](std::string_view end) { return name.ends_with(end); }) ||
          std::any_of(table->fixed_numbers.begin(), table->fixed_numbers.end(),
                      [&](const auto& number) { return name.ends_with(number.name); }));
}

std::string joining_matrix_name(const FileNames& names, int64_t depth) {
  return file_place(names, concat("layers.", names.layers + depth, ".mtp.eh_proj.weight"), {}).name;
}

namespace {

// The table that a layer which predicts further tokens has as its own in files of the family.
constexpr std::string_view kTableAhead = "embed_tokens.";
constexpr std::string_view kHeadAhead = "shared_head.head.";

// Behind which the number of a layer stands; empty: they have no such names.
std::string stem_of_layers(const NameScheme& scheme) {
  return scheme == NameScheme::kLogical ? "layers."
         : scheme.table() == nullptr
             ? std::string()
             : concat(scheme.bare() ? "" : scheme.part(), scheme.table()->layers);
}

bool is_passed_over(const FileNames& names, const std::string& name) {
  const bool by_modules = names.scheme == NameScheme::kModules;
  const std::string stem = by_modules ? std::string(kModulesAhead) : stem_of_layers(names.scheme);
  const auto layer = stem.empty() ? std::nullopt : split_numbered(stem, name);
  const int64_t number = number_of(layer);
  const int64_t before = by_modules ? 0 : names.layers;  // the first of them
  if (number < before) {
    return false;
  }
  return number >= before + names.ahead ||
         (names.scheme.table() != nullptr &&
          (layer->rest.starts_with(kTableAhead) || layer->rest.starts_with(kHeadAhead)));
}

}  // namespace

std::vector<std::string> further_names(const FileNames& names, const std::string& logical) {
  std::vector<std::string> out;
  if (names.scheme.table() == nullptr || !names.scheme.table()->more_layers) {
    return out;
  }
  const bool table = logical == "tok_embeddings.weight";
  const bool head = table ? names.tied : logical == "lm_head.weight";
  for (int64_t layer = names.layers; layer < names.layers + names.ahead; ++layer) {
    const std::string stem = concat(stem_of_layers(names.scheme), layer, ".");
    for (const auto& [is_it, copy] : {std::pair{table, kTableAhead}, std::pair{head, kHeadAhead}}) {
      if (is_it) {
        out.push_back(concat(stem, copy, "weight"));
      }
    }
  }
  return out;
}

bool is_constant(const FileNames& names, const std::string& name) {
  return (names.more_layers && names.layers > 0 && is_passed_over(names, name)) ||
         is_constant(names.scheme, name);
}

}  // namespace tapestry
