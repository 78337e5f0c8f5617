#include "interop/gguf/gguf_model.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <span>
#include <utility>

#include "autograd/tensor/error.h"
#include "interop/architectures/hf_names.h"
#include "interop/architectures/registry.h"
#include "interop/architectures/rules.h"
#include "parallel_core/config/model_matrices.h"
#include "parallel_core/rotary_frequencies.h"

namespace tapestry {
namespace {

using architectures::Architecture;
using architectures::NamePair;
using architectures::Objection;

// The family whose GGUF form says the configuration.
const Architecture& gguf_family(const TransformerConfig& config) {
  check<ValueError>(!config.score_head,
                    "GGUF: this is a reward model (model_config.score_head), and GGUF files are "
                    "written of models that predict tokens: llama.cpp has no name for a score head "
                    "of one value. Write it for the transformers library (--to hf)");
  std::vector<std::pair<std::string, std::vector<Objection>>> families;
  std::string known;
  for (const Architecture* family : architectures::gguf_families(config)) {
    const std::string name(family->gguf->architecture);
    families.emplace_back(name, architectures::gguf_objections(*family, config));
    if (families.back().second.empty()) {
      return *family;
    }
    const bool repeats = families.size() > 1 && families[families.size() - 2].first == name;
    known += repeats ? "" : concat(known.empty() ? "" : ", ", name);
  }
  const Architecture* named =
      config.hf_model_type ? architectures::find(*config.hf_model_type) : nullptr;
  const std::string reason =
      named == nullptr || named->no_gguf.empty()
          ? std::string()
          : concat(", of the type ", named->model_type, ": ", named->no_gguf);
  throw ValueError(concat("GGUF: the architectures that are written (", known,
                          ") cannot say this model", reason, ". Nearest are",
                          architectures::nearest(families)));
}

// Makes the list of tensors.
class GgufTable {
 public:
  GgufTable(const TransformerConfig& config,
            const architectures::GgufTables& tables,
            GgufModel& model)
      : c_(config), tables_(tables), model_(model) {}

  void fill() {
    add_all(matrices_before_layers(c_), "", tables_.top);
    for (int64_t layer = 0; layer < c_.num_layers; ++layer) {
      const std::vector<ModelMatrix> matrices = layer_matrices(c_, layer);
      add_all(matrices, concat("blk.", layer, "."), tables_.layer);
      add_head_rows(matrices, concat("blk.", layer, "."));
      add_to_lists(matrices);
      if (layer_kind(c_, layer) == LayerKind::kMixture) {
        add_experts(matrices, layer);
      }
    }
    add_divisors();
    add_all(matrices_after_layers(c_), "", tables_.top);
  }

 private:
  void add_all(const std::vector<ModelMatrix>& matrices,
               const std::string& file_stem,
               const std::vector<NamePair>& rows) {
    for (const NamePair& row : rows) {
      add(matrices, file_stem, row);
    }
  }

  // The tensors of a row, if the model has its matrix; those of a row with the same name join them.
  void add(const std::vector<ModelMatrix>& matrices,
           const std::string& file_stem,
           const NamePair& row) {
    const auto matrix = std::find_if(matrices.begin(), matrices.end(), [&](const ModelMatrix& m) {
      return is_named(m, row.logical);
    });
    if (matrix == matrices.end()) {
      return;
    }
    const MatrixRole role = matrix->role;
    const Heads turned = turned_heads(*matrix);
    for (const char* part : {"weight", "bias"}) {
      const bool weight = part == std::string_view("weight");
      if (!weight && !matrix->has_bias) {
        continue;
      }
      const Shape shape = weight ? matrix->shape : Shape{matrix->shape[0]};
      const std::string logical = concat(matrix->name, ".", part);
      const std::string name = concat(file_stem, row.file, part);
      if (GgufTensor* joined = find(name)) {
        joined->shape[0] += shape[0];
        joined->logical.push_back(logical);
        joined->shapes.push_back(shape);
        continue;
      }
      const bool small = role == MatrixRole::kPositions || role == MatrixRole::kRouter ||
                         role == MatrixRole::kSharedExpertGate;
      const bool less_1 = matrix->is_norm() && weight && c_.layernorm_zero_centered_gamma;
      model_.tensors.push_back({.name = name,
                                .shape = shape,
                                .logical = {logical},
                                .shapes = {shape},
                                .paired_heads = turned.number,
                                .unturned = turned.unturned,
                                .always_f32 = shape.size() == 1 || small,
                                .added = less_1 ? 1.0F : 0.0F});
    }
  }

  // The heads whose channels llama.cpp turns in pairs, but the model in halves, and the rows of
  // each that are not turned. With multi-head latent attention the turned channels are the last
  // ones.
  struct Heads {
    int64_t number = 0;
    int64_t unturned = 0;
  };
  Heads turned_heads(const ModelMatrix& matrix) const {
    if (!tables_.paired || c_.rotary_config.rotary_interleaved ||
        (matrix.role != MatrixRole::kQuery && matrix.role != MatrixRole::kKey)) {
      return {};
    }
    if (!c_.multi_latent_attention) {
      return {matrix.shape[0] / matrix.unit, 0};
    }
    if (matrix.name.ends_with(".wkv_a")) {
      return {1, c_.kv_lora_rank};
    }
    const bool has_queries = matrix.name.ends_with(".wq") || matrix.name.ends_with(".wq_b");
    return has_queries ? Heads{matrix.shape[0] / matrix.unit, c_.qk_head_dim} : Heads{};
  }

  void add_head_rows(const std::vector<ModelMatrix>& matrices, const std::string& file_stem) {
    AllConfig all;
    all.model_config = c_;
    const auto count = [&](std::string_view key) {
      return key.empty() ? int64_t{0}
                         : architectures::value_of(all, std::string(key)).as<int64_t>();
    };
    for (const architectures::GgufHeadRows& part : tables_.head_rows) {
      for (const ModelMatrix& matrix : matrices) {
        if (!is_named(matrix, part.name.logical)) {
          continue;
        }
        const int64_t heads = matrix.shape[0] / matrix.unit;
        const int64_t rows = count(part.rows);
        const int64_t columns = matrix.shape[1];
        model_.tensors.push_back(
            {.name = concat(file_stem, part.name.file, "weight"),
             .shape = part.transposed ? Shape{heads, columns, rows} : Shape{heads, rows, columns},
             .logical = {concat(matrix.name, ".weight")},
             .shapes = {matrix.shape},
             .split_heads = heads,
             .first_row = count(part.before),
             .transposed = part.transposed});
      }
    }
  }

  void add_to_lists(const std::vector<ModelMatrix>& matrices) {
    for (const NamePair& row : tables_.lists) {
      for (const ModelMatrix& matrix : matrices) {
        if (!is_named(matrix, row.logical)) {
          continue;
        }
        const auto found = std::find_if(model_.lists.begin(), model_.lists.end(),
                                        [&](const GgufList& list) { return list.key == row.file; });
        GgufList& list = found != model_.lists.end()
                             ? *found
                             : model_.lists.emplace_back(GgufList{std::string(row.file), {}});
        list.logical.push_back(concat(matrix.name, ".weight"));
      }
    }
  }

  // Whether the matrix is the row's ("attention.wq." of "layers.0.attention.wq").
  static bool is_named(const ModelMatrix& matrix, std::string_view row) {
    std::string_view name = matrix.name;
    if (matrix.layer >= 0) {
      name.remove_prefix(name.find('.', std::string_view("layers.").size()) + 1);
    }
    return row.ends_with('.') && name == row.substr(0, row.size() - 1);
  }

  // The same matrix of all experts of a layer in one tensor, and the bias by which they are chosen.
  void add_experts(const std::vector<ModelMatrix>& matrices, int64_t layer) {
    const std::string logical_stem = concat("layers.", layer, ".moe.");
    const std::string file_stem = concat("blk.", layer, ".");
    for (const NamePair& row : tables_.expert) {
      const auto first = std::find_if(matrices.begin(), matrices.end(), [&](const ModelMatrix& m) {
        return m.experts > 0 && concat(m.name, ".").ends_with(concat(".", row.logical));
      });
      if (first == matrices.end()) {
        continue;
      }
      for (const char* part : {"weight", "bias"}) {
        const bool weight = part == std::string_view("weight");
        if (!weight && !first->has_bias) {
          continue;
        }
        const Shape one = weight ? first->shape : Shape{first->shape[0]};
        GgufTensor tensor{.name = concat(file_stem, row.file, part),
                          .shape = {first->experts},
                          .logical = {},
                          .always_f32 = !weight};
        for (int64_t axis = 0; axis < one.size(); ++axis) {
          tensor.shape.push_back(one[axis]);
        }
        for (int64_t expert = 0; expert < first->experts; ++expert) {
          tensor.logical.push_back(
              concat(logical_stem, "experts.", expert, ".", row.logical, part));
          tensor.shapes.push_back(one);
        }
        model_.tensors.push_back(std::move(tensor));
      }
    }
    constexpr std::string_view kBias = "moe.router.expert_bias";
    for (const NamePair& row : tables_.layer) {
      if (row.logical == kBias && c_.moe.moe_router_enable_expert_bias) {
        model_.tensors.push_back({.name = concat(file_stem, row.file),
                                  .shape = {c_.moe.num_experts},
                                  .logical = {concat("layers.", layer, ".", kBias)},
                                  .shapes = {{c_.moe.num_experts}},
                                  .always_f32 = true});
      }
    }
  }

  // Among the last ones, where it is if it is.
  GgufTensor* find(const std::string& name) {
    constexpr size_t kNear = 4;
    const size_t count = model_.tensors.size();
    for (size_t i = count - std::min(count, kNear); i < count; ++i) {
      if (model_.tensors[i].name == name) {
        return &model_.tensors[i];
      }
    }
    return nullptr;
  }

  // What each pair's frequency is divided by; with longrope in long texts, and in others.
  void add_divisors() {
    const RotaryConfig& rotary = c_.rotary_config;
    if (rotary.rope_type == "llama3") {
      RotaryConfig plain = rotary;
      plain.rope_type = "default";
      const auto frequencies = [&](const RotaryConfig& one) {
        return rotary_frequencies(one, rotated_channels(c_), c_.seq_length).of_pairs;
      };
      std::vector<double> divisors = frequencies(plain);
      const std::vector<double> used = frequencies(rotary);
      for (size_t j = 0; j < divisors.size(); ++j) {
        divisors[j] /= used[j];
      }
      add_values("rope_freqs.weight", divisors);
    } else if (rotary.rope_type == "longrope") {
      add_values("rope_factors_long.weight", rotary.long_factor.value());
      add_values("rope_factors_short.weight", rotary.short_factor.value());
    }
  }

  void add_values(const std::string& name, const std::vector<double>& values) {
    GgufTensor tensor{.name = name,
                      .shape = {static_cast<int64_t>(values.size())},
                      .logical = {},
                      .always_f32 = true};
    std::transform(values.begin(), values.end(), std::back_inserter(tensor.values),
                   [](double value) { return static_cast<float>(value); });
    model_.tensors.push_back(std::move(tensor));
  }

  const TransformerConfig& c_;
  const architectures::GgufTables& tables_;
  GgufModel& model_;
};

}  // namespace

GgufModel gguf_model(const TransformerConfig& config) {
  return gguf_model(gguf_family(config), config);
}

GgufModel gguf_model(const Architecture& family, const TransformerConfig& config) {
  const architectures::GgufTables& tables = *family.gguf;
  GgufModel model{.architecture = std::string(tables.architecture),
                  .keys = tables.keys,
                  .takes_adapters = tables.takes_adapters};
  GgufTable(config, tables, model).fill();
  return model;
}

GgufType type_in_file(const GgufTensor& tensor, GgufType type) {
  if (tensor.always_f32) {
    return GgufType::kF32;
  }
  return gguf_can_hold(type, tensor.shape.back()) ? type : GgufType::kF16;
}

namespace {

// A list holds booleans or numbers.
void add_list(const std::string& key, const config::Value::List& list, GgufMetadata& metadata) {
  if (!list.empty() && list.front().is<double>()) {
    std::vector<float> numbers;
    for (const config::Value& one : list) {
      numbers.push_back(static_cast<float>(one.as<double>()));
    }
    metadata.add(key, std::span<const float>(numbers));
    return;
  }
  std::vector<bool> switches;
  for (const config::Value& one : list) {
    switches.push_back(one.as<bool>());
  }
  metadata.add(key, switches);
}

void add_value(const std::string& key, const config::Value& value, GgufMetadata& metadata) {
  if (value.is_null()) {
    return;
  }
  if (value.is<bool>()) {
    metadata.add(key, value.as<bool>());
  } else if (value.is<config::Value::List>()) {
    add_list(key, value.as<config::Value::List>(), metadata);
  } else if (value.is<double>()) {
    metadata.add(key, static_cast<float>(value.as<double>()));
  } else if (value.is<std::string>()) {
    metadata.add(key, value.as<std::string>());
  } else {
    const auto count = value.as<int64_t>();
    check<ValueError>(count >= 0 && count <= std::numeric_limits<uint32_t>::max(), "GGUF: ", key,
                      ": ", count, " does not fit 32 bits");
    metadata.add(key, static_cast<uint32_t>(count));
  }
}

}  // namespace

std::vector<std::pair<std::string, config::Value>> gguf_model_keys(const TransformerConfig& config,
                                                                   const GgufModel& model) {
  AllConfig all;
  all.model_config = config;
  all.moe_config = config.moe;
  std::vector<std::pair<std::string, config::Value>> out;
  for (const architectures::GgufKey& key : model.keys) {
    out.emplace_back(
        concat(key.whole ? "" : model.architecture + ".", key.key),
        key.made != nullptr ? key.made(all) : architectures::value_of(all, std::string(key.ours)));
  }
  return out;
}

void add_model_metadata(const TransformerConfig& config,
                        const GgufModel& model,
                        const std::string& name,
                        GgufType type,
                        GgufMetadata& metadata) {
  constexpr uint32_t kQuantizationVersion = 2;
  const std::string& arch = model.architecture;
  metadata.add("general.architecture", arch);
  metadata.add("general.type", "model");
  metadata.add("general.name", name);
  metadata.add("general.file_type", gguf_file_type(type));
  metadata.add("general.quantization_version", kQuantizationVersion);
  for (const auto& [key, value] : gguf_model_keys(config, model)) {
    add_value(key, value, metadata);
  }
}

int64_t pair_rows(int64_t row, int64_t d, int64_t unturned) {
  const int64_t within = row % (d + unturned) - unturned;
  return within < 0 ? row : row - within + within % 2 * (d / 2) + within / 2;
}

int64_t unpair_rows(int64_t row, int64_t d, int64_t unturned) {
  const int64_t within = row % (d + unturned) - unturned;
  return within < 0 ? row : row - within + within % (d / 2) * 2 + within / (d / 2);
}

}  // namespace tapestry
