#include "interop/export/gguf_model.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "autograd/tensor/error.h"
#include "interop/architectures/hf_names.h"
#include "interop/architectures/registry.h"
#include "interop/architectures/rules.h"
#include "parallel_core/config/model_matrices.h"
#include "parallel_core/transformer/rotary_frequencies.h"

namespace tapestry {
namespace {

using architectures::Architecture;
using architectures::NamePair;
using architectures::Objection;

// The family whose GGUF form says the configuration.
const Architecture& gguf_family(const TransformerConfig& config) {
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
  throw ValueError(concat("GGUF: the architectures that are written (", known,
                          ") cannot say this model. Nearest are",
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
      if (layer_kind(c_, layer) == LayerKind::kMixture) {
        add_experts(matrices, layer);
      }
    }
    if (c_.rotary_config.rope_type == "llama3") {
      divisors();
    }
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
    const bool paired = tables_.paired && !c_.rotary_config.rotary_interleaved &&
                        (role == MatrixRole::kQuery || role == MatrixRole::kKey);
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
      const bool small = role == MatrixRole::kPositions || role == MatrixRole::kRouter;
      const bool less_1 = matrix->is_norm() && weight && c_.layernorm_zero_centered_gamma;
      model_.tensors.push_back({.name = name,
                                .shape = shape,
                                .logical = {logical},
                                .shapes = {shape},
                                .paired_heads = paired ? matrix->shape[0] / matrix->unit : 0,
                                .always_f32 = shape.size() == 1 || small,
                                .added = less_1 ? 1.0F : 0.0F});
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

  // What each pair's frequency is divided by.
  void divisors() {
    RotaryConfig plain = c_.rotary_config;
    plain.rope_type = "default";
    const int64_t turned = rotated_channels(c_);
    const auto frequencies = [&](const RotaryConfig& rotary) {
      return rotary_frequencies(rotary, turned, c_.seq_length).of_pairs;
    };
    const std::vector<double> base = frequencies(plain);
    const std::vector<double> used = frequencies(c_.rotary_config);
    GgufTensor tensor{.name = "rope_freqs.weight",
                      .shape = {static_cast<int64_t>(base.size())},
                      .logical = {},
                      .always_f32 = true};
    for (size_t j = 0; j < base.size(); ++j) {
      tensor.values.push_back(static_cast<float>(base[j] / used[j]));
    }
    model_.tensors.push_back(std::move(tensor));
  }

  const TransformerConfig& c_;
  const architectures::GgufTables& tables_;
  GgufModel& model_;
};

}  // namespace

GgufModel gguf_model(const TransformerConfig& config) {
  const architectures::GgufTables& tables = *gguf_family(config).gguf;
  GgufModel model{.architecture = std::string(tables.architecture), .keys = tables.keys};
  GgufTable(config, tables, model).fill();
  return model;
}

GgufType type_in_file(const GgufTensor& tensor, GgufType type) {
  if (tensor.always_f32) {
    return GgufType::kF32;
  }
  return gguf_can_hold(type, tensor.shape.back()) ? type : GgufType::kF16;
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
  AllConfig all;
  all.model_config = config;
  all.moe_config = config.moe;
  for (const architectures::GgufKey& key : model.keys) {
    const config::Value value =
        key.made != nullptr ? key.made(all) : architectures::value_of(all, std::string(key.ours));
    const std::string full = concat(arch, ".", key.key);
    if (value.is<bool>()) {
      metadata.add(full, value.as<bool>());
      continue;
    }
    if (value.is<config::Value::List>()) {
      std::vector<bool> list;
      for (const config::Value& one : value.as<config::Value::List>()) {
        list.push_back(one.as<bool>());
      }
      metadata.add(full, list);
      continue;
    }
    if (value.is<double>()) {
      metadata.add(full, static_cast<float>(value.as<double>()));
      continue;
    }
    const auto count = value.as<int64_t>();
    check<ValueError>(count >= 0 && count <= std::numeric_limits<uint32_t>::max(), "GGUF: ", full,
                      ": ", count, " does not fit 32 bits");
    metadata.add(full, static_cast<uint32_t>(count));
  }
  const double factor = config.rotary_config.seq_len_interpolation_factor.value_or(1.0);
  if (config.position_embedding_type == "rope" && factor != 1.0) {
    metadata.add(arch + ".rope.scaling.type", "linear");
    metadata.add(arch + ".rope.scaling.factor", static_cast<float>(factor));
  }
}

int64_t pair_rows(int64_t row, int64_t d) {
  const int64_t within = row % d;
  return row - within + within % 2 * (d / 2) + within / 2;
}

}  // namespace tapestry
