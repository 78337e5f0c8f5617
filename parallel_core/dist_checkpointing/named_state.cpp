#include "parallel_core/dist_checkpointing/named_state.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "autograd/ops/shape_ops.h"
#include "autograd/tape/grad_mode.h"
#include "interop/architectures/file_place.h"

namespace tapestry {

namespace {

// "module.model.norm.weight" -> "model.norm.weight", where all names have the prefix.
LogicalState without_wrappers(LogicalState state) {
  for (bool found = !state.empty(); found;) {
    found = false;
    for (const std::string_view wrapper : {"module.", "_orig_mod."}) {
      const bool all = std::all_of(state.begin(), state.end(), [&](const auto& entry) {
        return entry.first.starts_with(wrapper);
      });
      if (all) {
        LogicalState shorter;
        for (auto& [name, tensor] : state) {
          shorter.emplace(name.substr(wrapper.size()), std::move(tensor));
        }
        state = std::move(shorter);
        found = true;
      }
    }
  }
  return state;
}

Tensor part_at(const Tensor& whole, const FilePlace& place, const Shape& shape) {
  if (place.strides) {
    const Tensor dense = whole.contiguous();
    const Strides strides = shape.size() == 1 ? Strides{place.strides->row}
                                              : Strides{place.strides->row, place.strides->column};
    return alias(dense, shape, strides, dense.offset() + place.strides->offset).contiguous();
  }
  if (place.transposed) {
    return whole.transpose(0, 1).slice(0, place.first, place.first + shape[0]).contiguous();
  }
  if (place.block == 0) {
    return shape.empty() ? whole : whole.slice(0, place.first, place.first + shape[0]).contiguous();
  }
  TensorList blocks;
  for (int64_t row = 0; row < shape[0]; row += place.block) {
    blocks.push_back(whole.slice(0, place.row(row), place.row(row) + place.block));
  }
  return cat(blocks, 0);
}

}  // namespace

LogicalShapes logical_shapes(const nn::Module& model) {
  LogicalShapes out;
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    for (const nn::LogicalTensor& logical : entry.parameter->logical()) {
      out.emplace(logical.name, logical.shape);
    }
  }
  return out;
}

LogicalState in_logical_names(LogicalState state,
                              const LogicalShapes& wanted,
                              const TransformerConfig& config) {
  const NoGradGuard guard;
  state = without_wrappers(std::move(state));
  std::set<std::string> names;
  for (const auto& [name, tensor] : state) {
    names.insert(name);
  }
  const NameScheme scheme = name_scheme(names);
  if (scheme == NameScheme::kLogical || scheme == NameScheme::kModules) {
    return state;
  }
  const FileNames file_names(names, config);
  LogicalState out;
  std::set<std::string> used;
  for (const auto& [name, shape] : wanted) {
    const FilePlace place = file_place(file_names, name, shape);
    const auto found = state.find(place.name);
    if (found != state.end() && found->second.shape() == place.shape) {
      out.emplace(name, part_at(found->second, place, shape));
      used.insert(place.name);
    }
  }
  for (auto& [name, tensor] : state) {
    if (!used.contains(name) && !is_constant(file_names, name)) {
      out.emplace(name, std::move(tensor));
    }
  }
  return out;
}

}  // namespace tapestry
