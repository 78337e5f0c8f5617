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

constexpr std::string_view kExperts = ".experts.";

// "layers.0.moe.experts.0.w_down" without the number.
std::string of_all_experts(const std::string& matrix) {
  const size_t at = matrix.find(kExperts) + kExperts.size();
  return matrix.substr(0, at) + matrix.substr(matrix.find('.', at) + 1);
}

// Puts together cells whose tensors have the names of the configuration's files.
class CellMaker {
 public:
  explicit CellMaker(const TransformerConfig& config) : names_(name_scheme(config), config) {}

  // Adds a matrix, a norm or a table to the cell of its module, which is the last one or a new one.
  // Matrices that one file tensor holds are one module of the cell.
  void add(const ModelMatrix& matrix, std::vector<ModelCell>& cells) const {
    const bool of_experts = matrix.experts > 0;
    if (of_experts && !stacks_experts(names_.scheme)) {
      return;
    }
    const bool takes_adapter = matrix.takes_adapter || of_experts;
    const std::string cell_path =
        of_experts ? concat(matrix.module, matrix.role == MatrixRole::kDown ? ".w2" : ".w1")
                   : matrix.module;
    if (cells.empty() || cells.back().path != cell_path) {
      cells.push_back({.path = cell_path,
                       .in_features = takes_adapter ? matrix.shape.back() : 1,
                       .takes_adapter = takes_adapter,
                       .experts = matrix.experts});
    }
    ModelCell& cell = cells.back();
    const std::string path = hf_path(matrix.name, matrix.shape.size());
    const std::string name = of_experts ? of_all_experts(matrix.name) : matrix.name;
    if (!path.empty() && !cell.modules.empty() && cell.modules.back().hf_path == path) {
      // "wq" and "wk" become "wqk", "w_gate" and "w_up" become "w_gate_up".
      cell.modules.back().name += name.substr(name.rfind('.') + 2);
    } else {
      cell.modules.push_back({.name = name, .hf_path = path});
    }
    ModelModule& module = cell.modules.back();
    const std::string weight = matrix.name + ".weight";
    if (takes_adapter) {
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
  std::string hf_path(const std::string& name, int64_t dims) const {
    constexpr std::string_view kEnd = ".weight";
    if (names_.scheme == NameScheme::kLogical) {
      return {};
    }
    const std::string full = name + std::string(kEnd);
    const std::string in_file = file_place(names_, full, Shape::filled(dims, 1)).name;
    if (stacks_experts(names_.scheme) && name.find(kExperts) != std::string::npos) {
      return in_file;  // a parameter, and no module with a weight
    }
    return in_file.ends_with(kEnd) && in_file != full
               ? in_file.substr(0, in_file.size() - kEnd.size())
           : name == "lm_head" || name == "score" ? name
                                                  : std::string();
  }

  FileNames names_;
};

}  // namespace

std::string module_of_expert(std::string module, int64_t expert) {
  const size_t at = module.find(kExperts);
  return at == std::string::npos ? std::move(module)
                                 : module.insert(at + kExperts.size(), concat(expert, "."));
}

int64_t ModelModule::out_features() const {
  return std::accumulate(rows.begin(), rows.end(), int64_t{0});
}

std::vector<ModelCell> adapted_cells(const TransformerConfig& config, int64_t layer) {
  const CellMaker maker(config);
  std::vector<ModelCell> out;
  for (const ModelMatrix& matrix :
       layer < 0 ? matrices_before_layers(config) : layer_matrices(config, layer)) {
    if (matrix.takes_adapter || matrix.experts > 0) {
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
