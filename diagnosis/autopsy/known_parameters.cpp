#include "diagnosis/autopsy/known_parameters.h"

#include <algorithm>
#include <cmath>

#include "autograd/ops/map.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tape/leaf_state.h"
#include "autograd/tape/observer.h"

namespace tapestry::autopsy {

namespace {

bool lies_in(const Tensor& t, const Tensor& whole) {
  return whole.defined() && t.storage().get() == whole.storage().get() &&
         t.dtype() == whole.dtype() && t.offset() >= whole.offset() &&
         t.offset() < whole.offset() + std::max<int64_t>(whole.numel(), 1);
}

// Number of the row of [rows, ...] with the first bad value, or else the largest; -1 for a vector.
int64_t worst_row(const Tensor& values, const ValueRange& range) {
  if (values.dim() < 2 || values.numel() == 0) {
    return -1;
  }
  const int64_t width = values.numel() / values.size(0);
  if (!range.finite()) {
    return range.first_bad / width;
  }
  for (int64_t row = 0; row < values.size(0); ++row) {
    if (value_range(values.select(0, row)).largest == range.largest) {
      return row;
    }
  }
  return -1;
}

// Reads the parameter, whose memory is leased.
ParameterPlace worst_place(const ParameterState& state) {
  for (const nn::LogicalTensor& logical : state.parameter->logical()) {
    const Tensor values =
        dense(logical.view_of(state.parameter->detach())).view(logical.local_shape());
    const ValueRange range = value_range(values);
    const bool is_worst =
        state.values.finite() ? range.largest == state.values.largest : !range.finite();
    if (is_worst) {
      int64_t row = worst_row(values, range);
      if (row >= 0 && !logical.offset.empty()) {
        row += logical.offset[0];
      }
      return {.logical = logical.name, .row = row};
    }
  }
  return {.logical = state.name};
}

}  // namespace

KnownParameters::KnownParameters(const nn::Module& model) {
  const NoGradGuard guard;
  const UnobservedScope unobserved;
  std::vector<double> largest;
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    ParameterState state{.name = entry.name, .parameter = entry.parameter};
    {
      const LeaseScope lease;
      state.values = value_range(*entry.parameter);
      state.place = worst_place(state);
    }
    const auto index = static_cast<int32_t>(states_.size());
    by_storage_.emplace(entry.parameter->storage().get(), index);
    if (const Tensor copy = compute_copy_buffer(*entry.parameter); copy.defined()) {
      by_storage_.emplace(copy.storage().get(), index);
    }
    if (state.values.finite() && state.values.largest > 0) {
      largest.push_back(state.values.largest);
    }
    states_.push_back(std::move(state));
  }
  if (largest.empty()) {
    largest.push_back(1);
  }
  const auto middle = largest.begin() + static_cast<std::ptrdiff_t>(largest.size() / 2);
  std::nth_element(largest.begin(), middle, largest.end());
  for (ParameterState& state : states_) {
    state.is_suspect = !state.values.finite() || state.values.largest > kOutlier * *middle;
  }
}

int32_t KnownParameters::of_values(const Tensor& t) const {
  if (!t.defined()) {
    return -1;
  }
  const auto [begin, end] = by_storage_.equal_range(t.storage().get());
  for (auto found = begin; found != end; ++found) {
    const nn::Parameter& parameter = *states_[static_cast<size_t>(found->second)].parameter;
    if (lies_in(t, parameter) || lies_in(t, compute_copy_buffer(parameter))) {
      return found->second;
    }
  }
  return -1;
}

int32_t KnownParameters::of_gradient(const Tensor& t) const {
  for (size_t i = 0; t.defined() && i < states_.size(); ++i) {
    const LeafState* state = leaf_state(*states_[i].parameter);
    if (state != nullptr && lies_in(t, state->main_grad)) {
      return static_cast<int32_t>(i);
    }
  }
  return -1;
}

}  // namespace tapestry::autopsy
