#include "parallel_core/lora/model_cells.h"

#include <numeric>
#include <string_view>
#include <utility>

#include "autograd/tensor/error.h"
#include "interop/architectures/file_place.h"
#include "interop/architectures/hf_names.h"
#include "parallel_core/config/model_matrices.h"

namespace tapestry {

namespace {

// Puts together cells whose tensors have the names of the configuration's files.
class CellMaker {
 public:
  explicit CellMaker(const TransformerConfig& config) : names_(name_scheme(config), config) {}

  // Adds a matrix, a norm or a table to the cell of its module, which is the last one or a new one.
  // Matrices that one file tensor holds are one module of the cell.
  void add(const ModelMatrix& matrix, std::vector<ModelCell>& cells) const {
    if (matrix.experts > 0) {
      return;
    }
    if (cells.empty() || cells.back().path != matrix.module) {
      cells.push_back({.path = matrix.module,
                       .in_features = matrix.takes_adapter ? matrix.shape.back() : 1,
                       .takes_adapter = matrix.takes_adapter});
    }
    ModelCell& cell = cells.back();
    const std::string path = hf_path(matrix.name, matrix.shape.size());
    if (!path.empty() && !cell.modules.empty() && cell.modules.back().hf_path == path) {
      const size_t last = matrix.name.rfind('.') + 1;
      const bool gated = std::string_view(matrix.name).substr(last) == "w_up";
      cell.modules.back().name =
          matrix.name.substr(0, last) + std::string(gated ? kFusedGate : kFusedName);
    } else {
      cell.modules.push_back({.name = matrix.name, .hf_path = path});
    }
    ModelModule& module = cell.modules.back();
    const std::string weight = matrix.name + ".weight";
    if (matrix.takes_adapter) {
      module.weights.push_back(weight);
      module.rows.push_back(matrix.shape[0]);
    }
    module.tensors.push_back(weight);
    module.sizes.push_back(matrix.shape.numel());
    if (matrix.has_bias) {
      module.tensors.push_back(matrix.name + ".bias");
      module.sizes.push_back(matrix.shape[0]);
    }
  }

 private:
  // What may lie in one tensor of a file: queries, keys and values, or the two halves of a gated
  // MLP.
  static constexpr std::string_view kFusedName = "wqkv";
  static constexpr std::string_view kFusedGate = "w_gate_up";

  std::string hf_path(const std::string& name, int64_t dims) const {
    constexpr std::string_view kEnd = ".weight";
    if (names_.scheme == NameScheme::kLogical) {
      return {};
    }
    const std::string full = name + std::string(kEnd);
    const std::string in_file = file_place(names_, full, Shape::filled(dims, 1)).name;
    return in_file.ends_with(kEnd) && in_file != full
               ? in_file.substr(0, in_file.size() - kEnd.size())
           : name == "lm_head" ? name
                               : std::string();
  }

  FileNames names_;
};

}  // namespace

int64_t ModelModule::out_features() const {
  return std::accumulate(rows.begin(), rows.end(), int64_t{0});
}

std::vector<ModelCell> adapted_cells(const TransformerConfig& config, int64_t layer) {
  const CellMaker maker(config);
  std::vector<ModelCell> out;
  for (const ModelMatrix& matrix : layer_matrices(config, layer)) {
    if (matrix.takes_adapter) {
      maker.add(matrix, out);
    }
  }
  return out;
}

std::vector<ModelCell> model_cells(const TransformerConfig& config) {
  const CellMaker maker(config);
  std::vector<ModelCell> out;
  for (const ModelMatrix& matrix : model_matrices(config)) {
    maker.add(matrix, out);
  }
  return out;
}

}  // namespace tapestry
