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

/// A module in memory with the parts that its parameters are fused from.
struct ModelCell {
  std::string path;  ///< "language_model.encoder.layers.0.attention.qkv_proj"
  std::vector<ModelModule> modules;
  int64_t in_features = 0;  ///< of matrices; of anything else 1
  bool takes_adapter = false;
};

/// All cells of the model, in the order of its layers, without routed experts, which belong to
/// nobody's cell.
std::vector<ModelCell> model_cells(const TransformerConfig& config);

/// Those that take an adapter of layer `layer`, from 0.
std::vector<ModelCell> adapted_cells(const TransformerConfig& config, int64_t layer);

}  // namespace tapestry
