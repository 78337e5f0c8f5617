#include "parallel_core/dist_checkpointing/logical_state.h"

#include <algorithm>
#include <set>
#include <span>

#include "autograd/io/json.h"
#include "autograd/ops/map.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/comm/sum_over.h"
#include "parallel_core/dist_checkpointing/agreement.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/parameter_ranks.h"
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

namespace {

// Tensors that all ranks of the tensor-parallel group have slices of, or copies.
LogicalState gather_dense(const std::vector<LogicalSlice>& slices) {
  ProcessGroup& group = slices_group(/*of_expert=*/false);
  LogicalState state;
  for (const LogicalSlice& slice : slices) {
    if (slice.of_expert) {
      continue;
    }
    const nn::LogicalTensor& logical = *slice.logical;
    // A rank that holds nothing of a small vocabulary's end is not the rule: all ranks have to take
    // the same way, so it is the group's size and the kind of tensor that decide.
    const bool is_shared = group.size() > 1 && !logical.slice_shape.empty();
    if (group.rank() == 0) {
      const Tensor whole = empty(logical.shape, slice.values.dtype());
      copy_values(slice.values, logical.slice_of(whole));
      if (is_shared) {
        receive_slices(logical, whole, group);
      }
      state.emplace(logical.name, whole);
    } else if (is_shared) {
      group.send(header_of(logical), 0);
      if (slice.values.numel() > 0) {
        group.send(dense(slice.values), 0);
      }
    }
  }
  return state;
}

// What a rank tells of a slice that it will send.
nlohmann::json described(const LogicalSlice& slice) {
  const auto numbers = [](const Shape& shape) {
    return std::vector<int64_t>(shape.begin(), shape.end());
  };
  const nn::LogicalTensor& logical = *slice.logical;
  return {logical.name, static_cast<int>(slice.values.dtype()), numbers(logical.shape),
          numbers(logical.offset.empty() ? Shape::filled(logical.shape.size(), 0) : logical.offset),
          numbers(logical.local_shape())};
}

nn::LogicalTensor slice_described(const nlohmann::json& text) {
  const auto shape = [](const nlohmann::json& numbers) {
    const auto sizes = numbers.get<std::vector<int64_t>>();
    return Shape(std::span<const int64_t>(sizes));
  };
  return {.name = text[0],
          .shape = shape(text[2]),
          .view_shape = {},
          .offset = shape(text[3]),
          .slice_shape = shape(text[4])};
}

// Adds the experts of all ranks of the group to the states of those that keep them. The ranks have
// different tensors, so each first tells what it has.
void gather_experts(const std::vector<LogicalSlice>& slices, LogicalState& state) {
  ProcessGroup& group = whole_experts_group();
  const bool keeps = slices_group(/*of_expert=*/false).rank() == 0;
  std::vector<const LogicalSlice*> own;
  nlohmann::json text = {{"keeps", keeps}, {"slices", nlohmann::json::array()}};
  for (const LogicalSlice& slice : slices) {
    // Of what ranks hold equally the first sends its copy.
    const bool first = slices_group(/*of_expert=*/true).rank() == 0;
    if (slice.of_expert && (first || !slice.logical->slice_shape.empty())) {
      own.push_back(&slice);
      text["slices"].push_back(described(slice));
    }
  }
  std::vector<nlohmann::json> ranks;
  for (const std::string& rank : all_gather_text(group, text.dump())) {
    ranks.push_back(nlohmann::json::parse(rank));
  }
  const auto keep = [&](const nn::LogicalTensor& slice, const Tensor& values) {
    const auto found = state.try_emplace(slice.name).first;
    if (!found->second.defined()) {
      found->second = empty(slice.shape, values.dtype());
    }
    copy_values(values, slice.slice_of(found->second));
  };
  for (int sender = 0; sender < group.size(); ++sender) {
    const nlohmann::json& theirs = ranks[static_cast<size_t>(sender)]["slices"];
    for (size_t i = 0; i < theirs.size(); ++i) {
      const nn::LogicalTensor slice = slice_described(theirs[i]);
      if (sender == group.rank()) {
        const Tensor values = dense(own[i]->values);
        for (int other = 0; other < group.size(); ++other) {
          if (other != sender && ranks[static_cast<size_t>(other)]["keeps"]) {
            group.send(values, other);
          }
        }
        if (keeps) {
          keep(slice, values);
        }
      } else if (keeps) {
        const Tensor values = empty(slice.slice_shape, static_cast<DType>(theirs[i][1].get<int>()));
        group.receive(values, sender);
        keep(slice, values);
      }
    }
  }
}

}  // namespace

LogicalState gather_logical(const std::vector<LogicalSlice>& slices) {
  LogicalState state = gather_dense(slices);
  if (std::any_of(slices.begin(), slices.end(),
                  [](const auto& slice) { return slice.of_expert; })) {
    gather_experts(slices, state);
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
      slices.push_back({&logical, dense(logical.view_of(values)).view(logical.local_shape()),
                        entry.parameter->flags().expert});
    }
  }
  LogicalState state = gather_logical(slices);
  if (slices_group(/*of_expert=*/false).rank() == 0) {
    for (const nn::Module::NamedBuffer& entry : model.named_buffers()) {
      if (!entry.logical.empty()) {
        state.emplace(entry.logical, dense_copy(entry.buffer));
      }
    }
  }
  return state;
}

nn::LoadReport compare_logical_state(const nn::Module& model, const LogicalState& state) {
  nn::LoadReport report;
  std::set<std::string> expected;
  const auto expect = [&](const std::string& name, const Shape& shape) {
    expected.insert(name);
    const auto found = state.find(name);
    if (found == state.end()) {
      report.missing.push_back(name);
    } else if (found->second.shape() != shape) {
      report.mismatched.push_back({name, shape, found->second.shape()});
    }
  };
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    for (const nn::LogicalTensor& logical : entry.parameter->logical()) {
      expect(logical.name, logical.shape);
    }
  }
  for (const nn::Module::NamedBuffer& entry : model.named_buffers()) {
    if (!entry.logical.empty()) {
      expect(entry.logical, entry.buffer.shape());
    }
  }
  std::vector<double> ranks_with;  // of each name
  for (const auto& [name, tensor] : state) {
    ranks_with.push_back(expected.contains(name) ? 1 : 0);
  }
  sum_over_pipeline(ranks_with);
  sum_over(experts_group(), ranks_with);
  size_t index = 0;
  for (const auto& [name, tensor] : state) {
    if (ranks_with[index++] == 0) {
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
    if (entry.parameter->is_quantized()) {
      entry.parameter->store_quantized();
    }
    entry.parameter->bump_version();
  }
  for (const nn::Module::NamedBuffer& entry : model.named_buffers()) {
    if (!entry.logical.empty()) {
      copy_values(state.at(entry.logical), entry.buffer);
    }
  }
}

}  // namespace tapestry
