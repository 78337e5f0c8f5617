// The parts of a model as its configuration describes them, by all their names: what adapters and
// modules_to_save can be asked for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel_core/config/config.h"

namespace tapestry {

/// What has a name of its own in a file: a matrix with its bias, a norm, a table.
struct ModelModule {
  std::string name;                  ///< logical: "layers.0.attention.wq", "final_norm"
  std::string hf_path;               ///< empty where the model has no Hugging Face names
  std::vector<std::string> tensors;  ///< logical, each matrix before its bias
  std::vector<int64_t> sizes;        ///< elements of the same
  std::vector<std::string> weights;  ///< of these, the matrices
  std::vector<int64_t> rows;         ///< of the same

  int64_t out_features() const;
};

/// "layers.0.moe.experts.w_down" as the module of expert 3: "layers.0.moe.experts.3.w_down".
/// Without a number in both: nothing changes.
std::string module_of_expert(std::string module, int64_t expert);

/// A module in memory with the parts that its parameters are fused from.
struct ModelCell {
  std::string path;  ///< "language_model.encoder.layers.0.attention.qkv_proj"
  std::vector<ModelModule> modules;
  int64_t in_features = 0;  ///< of matrices; of anything else 1
  bool takes_adapter = false;
  /// Of routed experts whose matrices are one tensor of a file ("...mlp.experts.gate_up_proj"): how
  /// many; modules are then of all of them, and tensors, weights and rows those of the first.
  int64_t experts = 0;
};

/// All cells of the model, in the order of its layers. Routed experts that have tensors of their
/// own in a file belong to nobody's cell.
std::vector<ModelCell> model_cells(const TransformerConfig& config);

/// Those that take an adapter of layer `layer`, from 0.
std::vector<ModelCell> adapted_cells(const TransformerConfig& config, int64_t layer);

}  // namespace tapestry
