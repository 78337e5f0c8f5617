#include "parallel_core/dist_checkpointing/logical_state.h"

#include <set>

#include "autograd/ops/map.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "parallel_core/pipeline_parallel/collect.h"

namespace tapestry {

LogicalState get_logical_state(const nn::Module& model, const optim::Optimizer* optimizer) {
  const NoGradGuard guard;
  LogicalState state;
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    if (entry.parameter->flags().shared) {
      continue;
    }
    const Tensor values =
        optimizer != nullptr ? optimizer->main_param(entry.name) : Tensor(*entry.parameter);
    for (const nn::LogicalTensor& logical : entry.parameter->logical()) {
      state.emplace(logical.name, dense_copy(logical.view_of(values)).view(logical.shape));
    }
  }
  return state;
}

nn::LoadReport compare_logical_state(const nn::Module& model, const LogicalState& state) {
  nn::LoadReport report;
  std::set<std::string> expected;
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    for (const nn::LogicalTensor& logical : entry.parameter->logical()) {
      expected.insert(logical.name);
      const auto found = state.find(logical.name);
      if (found == state.end()) {
        report.missing.push_back(logical.name);
      } else if (found->second.shape() != logical.shape) {
        report.mismatched.push_back({logical.name, logical.shape, found->second.shape()});
      }
    }
  }
  std::vector<double> stages_with;  // of each name
  for (const auto& [name, tensor] : state) {
    stages_with.push_back(expected.contains(name) ? 1 : 0);
  }
  sum_over_pipeline(stages_with);
  size_t index = 0;
  for (const auto& [name, tensor] : state) {
    if (stages_with[index++] == 0) {
      report.unexpected.push_back(name);
    }
  }
  return report;
}

void set_logical_state(nn::Module& model, const LogicalState& state, const std::string& source) {
  const nn::LoadReport report = compare_logical_state(model, state);
  check<ValueError>(report.empty(), source, ": the weights do not fit the model\n", report.str());
  const NoGradGuard guard;
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    for (const nn::LogicalTensor& logical : entry.parameter->logical()) {
      const Tensor piece = logical.view_of(*entry.parameter);
      copy_values(dense(state.at(logical.name)).view(piece.shape()), piece);
    }
    entry.parameter->bump_version();
  }
}

}  // namespace tapestry
