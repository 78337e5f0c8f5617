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
  for (const Architecture& family : architectures::all()) {
    if (!family.gguf) {
      continue;
    }
    const std::string name(family.gguf->architecture);
    families.emplace_back(name, architectures::gguf_objections(family, config));
    if (families.back().second.empty()) {
      return family;
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
      add_all(layer_matrices(c_, layer), concat("blk.", layer, "."), tables_.layer);
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
        continue;
      }
      model_.tensors.push_back({.name = name,
                                .shape = shape,
                                .logical = {logical},
                                .paired_heads = paired ? matrix->shape[0] / matrix->unit : 0,
                                .always_f32 = shape.size() == 1 || role == MatrixRole::kPositions});
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
    const std::vector<double> base = rotary_frequencies(plain, c_.kv_channels.value());
    const std::vector<double> used = rotary_frequencies(c_.rotary_config, c_.kv_channels.value());
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
  for (const architectures::GgufKey& key : model.keys) {
    const config::Value value = architectures::value_of(all, std::string(key.ours));
    const std::string full = concat(arch, ".", key.key);
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
