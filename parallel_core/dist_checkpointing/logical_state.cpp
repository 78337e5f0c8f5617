#include "parallel_core/dist_checkpointing/logical_state.h"

#include <set>

#include "autograd/ops/map.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/pipeline_parallel/collect.h"

namespace tapestry {

namespace {

// Where a slice lies in its logical tensor: the offset on each axis, then the size.
Tensor header_of(const nn::LogicalTensor& logical) {
  const int64_t axes = logical.shape.size();
  Tensor header = zeros({2 * axes}, kInt64);
  auto* numbers = header.data<int64_t>();
  for (int64_t i = 0; i < axes; ++i) {
    numbers[i] = logical.offset.empty() ? 0 : logical.offset[i];
    numbers[axes + i] = logical.local_shape()[i];
  }
  return header;
}

// Receives the slices of the other ranks and puts them where they belong.
void receive_slices(const nn::LogicalTensor& logical, const Tensor& whole, ProcessGroup& group) {
  const int64_t axes = logical.shape.size();
  for (int rank = 1; rank < group.size(); ++rank) {
    nn::LogicalTensor theirs = logical;
    const Tensor header = header_of(logical);
    group.receive(header, rank);
    const auto* numbers = header.data<int64_t>();
    theirs.offset = Shape(std::span<const int64_t>(numbers, static_cast<size_t>(axes)));
    theirs.slice_shape = Shape(std::span<const int64_t>(numbers + axes, static_cast<size_t>(axes)));
    if (theirs.slice_shape.numel() > 0) {
      const Tensor values = empty(theirs.slice_shape, whole.dtype());
      group.receive(values, rank);
      copy_values(values, theirs.slice_of(whole));
    }
  }
}

}  // namespace

LogicalState gather_logical(const std::vector<LogicalSlice>& slices) {
  ProcessGroup* group =
      model_parallel_is_initialized() ? &get_tensor_model_parallel_group() : nullptr;
  LogicalState state;
  for (const LogicalSlice& slice : slices) {
    const nn::LogicalTensor& logical = *slice.logical;
    // A rank that holds nothing of a small vocabulary's end is not the rule: all ranks have to take
    // the same way, so it is the group's size and the kind of tensor that decide.
    const bool is_shared = group != nullptr && group->size() > 1 && !logical.slice_shape.empty();
    if (group == nullptr || group->rank() == 0) {
      const Tensor whole = empty(logical.shape, slice.values.dtype());
      copy_values(slice.values, logical.slice_of(whole));
      if (is_shared) {
        receive_slices(logical, whole, *group);
      }
      state.emplace(logical.name, whole);
    } else if (is_shared) {
      group->send(header_of(logical), 0);
      if (slice.values.numel() > 0) {
        group->send(dense(slice.values), 0);
      }
    }
  }
  return state;
}

LogicalState get_logical_state(const nn::Module& model, const optim::Optimizer* optimizer) {
  const NoGradGuard guard;
  std::vector<LogicalSlice> slices;
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    if (entry.parameter->flags().shared) {
      continue;
    }
    const Tensor values =
        optimizer != nullptr ? optimizer->main_param(entry.name) : Tensor(*entry.parameter);
    for (const nn::LogicalTensor& logical : entry.parameter->logical()) {
      slices.push_back({&logical, dense(logical.view_of(values)).view(logical.local_shape())});
    }
  }
  return gather_logical(slices);
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
      copy_values(dense(logical.slice_of(state.at(logical.name))).view(piece.shape()), piece);
    }
    entry.parameter->bump_version();
  }
}

}  // namespace tapestry
