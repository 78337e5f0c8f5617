#include "optim/parameter_places.h"

#include <span>

#include "autograd/tensor/error.h"

namespace tapestry::optim {

namespace {

// The statistics of a tensor's rows or columns.
Shape statistics_shape(StateExtent extent, const Shape& shape) {
  const int64_t axis = shape.size() - (extent == StateExtent::kRow ? 1 : 2);
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < shape.size(); ++i) {
    if (i != axis) {
      sizes.push_back(shape[i]);
    }
  }
  return Shape(std::span<const int64_t>(sizes));
}

}  // namespace

void ParameterPlaces::set_fixed(std::map<std::string, Tensor> parameters) {
  for (const auto& [name, parameter] : parameters) {
    check<ValueError>(groups_.find(name) == nullptr, optimizer_(), ": '", name,
                      "' is updated, so it is not fixed");
  }
  fixed_ = std::move(parameters);
}

const ParamGroups::Slot& ParameterPlaces::slot_of(const std::string& name) const {
  const ParamGroups::Slot* slot = groups_.find(name);
  check<ValueError>(slot != nullptr, optimizer_(), ": there is no parameter '", name, "'");
  return *slot;
}

Tensor ParameterPlaces::parameter_of(const std::string& name) const {
  if (const auto fixed = fixed_.find(name); fixed != fixed_.end()) {
    const Tensor whole = fixed->second.detach();
    return shards_ == nullptr ? whole : whole.view({whole.numel()});
  }
  return groups_.parameter(slot_of(name));
}

OwnPart ParameterPlaces::own_part(const std::string& name) const {
  const Tensor own = parameter_of(name);
  if (is_fixed(name)) {
    return {.shape = fixed_.at(name).shape(), .first = 0, .count = own.numel()};
  }
  if (shards_ == nullptr) {
    return {.shape = own.shape(), .first = 0, .count = own.numel()};
  }
  return {
      .shape = shards_->shape(name), .first = shards_->first_element(name), .count = own.numel()};
}

const std::vector<nn::LogicalTensor>& ParameterPlaces::logical_of(const std::string& name) const {
  std::vector<nn::LogicalTensor>& logical = logical_[name];
  if (logical.empty() && layout_ != nullptr) {
    logical = layout_->logical(name);
  }
  if (logical.empty()) {
    const Shape shape = shards_ == nullptr ? parameter_of(name).shape() : shards_->shape(name);
    const int64_t size = shape.numel();
    logical = {{.name = name, .shape = shape, .view_shape = {size}, .axis = 0, .end = size}};
  }
  return logical;
}

std::vector<StateEntry> ParameterPlaces::entries(const std::string& name,
                                                 const std::vector<StateKind>& kinds) const {
  const std::vector<nn::LogicalTensor>& logical = logical_of(name);
  std::vector<StateEntry> out;
  for (const StateKind& kind : kinds) {
    if (kind.extent == StateExtent::kElement) {
      out.push_back({kind.name, kind.name, kind.extent, 0, own_part(name).shape});
      continue;
    }
    for (size_t i = 0; i < logical.size(); ++i) {
      out.push_back({i == 0 ? kind.name : concat(kind.name, ".", i), kind.name, kind.extent, i,
                     statistics_shape(kind.extent, logical[i].shape)});
    }
  }
  return out;
}

Tensor ParameterPlaces::whole_of(const std::string& name,
                                 const Tensor& own,
                                 StateExtent extent) const {
  const bool is_whole = shards_ == nullptr || extent != StateExtent::kElement;
  return is_whole ? own : shards_->whole_of(name, own);
}

Tensor ParameterPlaces::piece_of(const std::string& name,
                                 const Tensor& whole,
                                 StateExtent extent) const {
  const bool is_whole = shards_ == nullptr || extent != StateExtent::kElement;
  return is_whole ? whole : shards_->piece_of(name, whole);
}

}  // namespace tapestry::optim
