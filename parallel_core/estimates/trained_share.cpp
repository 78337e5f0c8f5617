#include "parallel_core/estimates/trained_share.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <set>
#include <utility>

#include "parallel_core/config/model_matrices.h"
#include "parallel_core/estimates/memory_estimate.h"
#include "parallel_core/lora/adapter_plan.h"
#include "text/util/numbers.h"

namespace tapestry {

namespace {

bool holds(const PipelineStage& stage, const ModelMatrix& matrix) {
  switch (matrix.role) {
    case MatrixRole::kEmbedding:
    case MatrixRole::kPositions:
    case MatrixRole::kPerLayerTable:
      return stage.pre_process();
    case MatrixRole::kPerLayer:
      if (matrix.layer < 0) {
        return stage.pre_process();
      }
      break;
    default:
      break;
  }
  return matrix.layer < 0
             ? stage.post_process()
             : std::any_of(stage.chunks.begin(), stage.chunks.end(), [&](const LayerRange& range) {
                 return matrix.layer >= range.first && matrix.layer < range.first + range.count;
               });
}

bool is_first_of_mlp(MatrixRole role) {
  return role == MatrixRole::kGate || role == MatrixRole::kUp;
}

// Whether a matrix reads what a norm has made of the hidden states.
bool reads_layer_input(MatrixRole role) {
  return is_first_of_mlp(role) || role == MatrixRole::kQuery || role == MatrixRole::kKey ||
         role == MatrixRole::kValue;
}

// The model's matrices by the names of their weights.
std::map<std::string, ModelMatrix> by_weight(const TransformerConfig& config) {
  std::map<std::string, ModelMatrix> out;
  for (ModelMatrix& matrix : model_matrices(config)) {
    std::string name = matrix.name + ".weight";
    out.emplace(std::move(name), std::move(matrix));
  }
  return out;
}

}  // namespace

TrainedShare trained_share(const TransformerConfig& config,
                           const PipelineStage& stage,
                           const ModelShares& shares) {
  TrainedShare share;
  if (!config.lora.use_lora) {
    return share;
  }
  const AdapterPlan plan = plan_adapter(config);
  const std::map<std::string, ModelMatrix> matrices = by_weight(config);
  const auto divided = static_cast<double>(shares.tensor);
  std::set<int64_t> attention;
  std::set<int64_t> mlp;
  for (const AdaptedModule& module : plan.modules) {
    const ModelMatrix& matrix = matrices.at(module.weights.front());
    if (!holds(stage, matrix)) {
      continue;
    }
    if (reads_layer_input(matrix.role)) {
      (is_first_of_mlp(matrix.role) ? mlp : attention).insert(matrix.layer);
    }
    const bool by_rows = matrix.sharded_axis == 0;
    const bool of_experts = module.experts > 0;
    const auto count =
        of_experts ? static_cast<double>(module.experts) / static_cast<double>(shares.expert) : 1.0;
    const double ranks = of_experts ? static_cast<double>(shares.expert_tensor) : divided;
    const auto rank = static_cast<double>(module.rank);
    const double in = static_cast<double>(module.in_features) / (by_rows ? 1 : ranks);
    const double out = static_cast<double>(module.out_features) / (by_rows ? ranks : 1);
    share.adapters += count * rank * (in + out) + (config.lora.use_dora ? out : 0);
    share.ranks += rank;
  }
  for (size_t i = 0; i < plan.saved_modules.size(); ++i) {
    const std::string& tensor = plan.saved_modules[i];
    const std::string stem = tensor.substr(0, tensor.rfind('.'));
    const ModelMatrix& matrix = matrices.at(stem + ".weight");
    if (holds(stage, matrix)) {
      const bool is_divided =
          matrix.sharded_axis && (*matrix.sharded_axis == 0 || tensor.ends_with(".weight"));
      share.saved += static_cast<double>(plan.saved_sizes[i]) / (is_divided ? divided : 1);
    }
  }
  for (const LayerRange& range : stage.chunks) {
    for (int64_t layer = range.first; layer < range.first + range.count; ++layer) {
      share.unread_attention_inputs += attention.contains(layer) ? 0 : 1;
      share.unread_mlp_inputs += mlp.contains(layer) ? 0 : 1;
    }
  }
  return share;
}

TrainedShare trained_share(const TransformerConfig& config) {
  return trained_share(config, whole_model(config), {});
}

std::string trained_share_text(const TransformerConfig& config) {
  const TrainedShare share = trained_share(config);
  const double base = static_cast<double>(parameter_count(config));
  std::array<char, 32> percent{};
  std::snprintf(percent.data(), percent.size(), "%.3g",
                100 * share.trained() / (base + share.adapters));
  return concat(with_thousands(static_cast<int64_t>(share.trained())), " of ",
                with_thousands(static_cast<int64_t>(base + share.adapters)),
                " parameters are trained (", percent.data(), " %): adapters beside ",
                plan_adapter(config).modules.size(), " matrices",
                share.saved > 0 ? ", and tensors of the base" : "");
}

}  // namespace tapestry
