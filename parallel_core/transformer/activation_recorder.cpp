#include "parallel_core/transformer/activation_recorder.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "autograd/ops/map.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"

namespace tapestry {

void ActivationRecorder::value_made(const ObservedValue& value) {
  if (const std::string name(value.name); !values_.contains(name)) {
    values_.emplace(name, row_of(value, 0));
    placements_.emplace(name, placement_of_row(value));
  }
}

Tensor ActivationRecorder::row_of(const ObservedValue& value, int64_t row) {
  const NoGradGuard guard;
  const UnobservedScope unobserved;
  const Tensor rows = value.value.detach().transpose(0, value.batch_axis);
  return dense_copy(rows.slice(0, row, row + 1).to(kFloat32));
}

ValuePlacement ActivationRecorder::placement_of_row(const ObservedValue& value) {
  ValuePlacement placement = value.placement;
  const int64_t batch = value.batch_axis;
  std::swap(placement.ranges[0], placement.ranges[static_cast<size_t>(batch)]);
  std::swap(placement.global_shape[0], placement.global_shape[batch]);
  placement.global_shape[0] = 1;
  placement.ranges[0] = {{0, 1}};
  return placement;
}

ReportedAxis sliced_axis(int64_t begin, int64_t count, int64_t size) {
  return {.size = size, .ranges = {{begin, begin + count}}};
}

ReportedAxis token_axis(const SequencePart& part) {
  if (part.length == 0) {
    return whole_axis();
  }
  ReportedAxis axis{.size = part.length};
  for (const PositionRun& run : part.runs) {
    axis.ranges.push_back({run.first, run.first + run.count});
  }
  return axis;
}

namespace {

bool any_observer(bool (Observer::*wants)() const) {
  const detail::ObserverList* observers = detail::op_observers();
  return observers != nullptr && !thread_state().recomputing &&
         std::any_of(observers->begin(), observers->end(),
                     [wants](const Observer* observer) { return (observer->*wants)(); });
}

}  // namespace

bool activations_are_recorded() { return any_observer(&Observer::wants_values); }

bool activations_are_replaced() { return any_observer(&Observer::replaces_values); }

namespace {

ValuePlacement placement_of(const Tensor& value, const std::vector<ReportedAxis>& axes) {
  ValuePlacement placement{.global_shape = value.shape()};
  for (int64_t axis = 0; axis < value.dim(); ++axis) {
    const ReportedAxis& place = axes.at(static_cast<size_t>(axis));
    const int64_t own = value.size(axis);
    placement.global_shape[axis] = place.size < 0 ? own : place.size;
    placement.ranges.push_back(place.size < 0 ? std::vector<ValuePlacement::Range>{{0, own}}
                                              : place.ranges);
  }
  return placement;
}

// What the model is to go on with.
Tensor replaced(std::string_view name,
                const Tensor& value,
                const ValuePlacement& placement,
                int64_t batch_axis) {
  Tensor goes_on = value;
  for (Observer* observer : *detail::op_observers()) {
    Tensor other = observer->replacement({.name = name,
                                          .value = goes_on,
                                          .placement = placement,
                                          .goes_on = goes_on,
                                          .batch_axis = batch_axis});
    if (other.defined()) {
      check<RuntimeError>(other.shape() == value.shape() && other.dtype() == value.dtype(), name,
                          ": is to be replaced by ", describe(other), ", but is ", describe(value));
      goes_on = std::move(other);
    }
  }
  return goes_on;
}

bool take(Tensor& value, Tensor goes_on) {
  const bool is_another = goes_on.impl() != value.impl();
  value = std::move(goes_on);
  return is_another;
}

}  // namespace

void report_activation(std::string_view name,
                       const Tensor& value,
                       const std::vector<ReportedAxis>& axes,
                       int64_t batch_axis,
                       const Tensor& with_gradient) {
  if (!activations_are_recorded()) {
    return;
  }
  const ValuePlacement placement = placement_of(value, axes);
  detail::tell(detail::op_observers(), &Observer::value_made,
               ObservedValue{.name = name,
                             .value = value,
                             .placement = placement,
                             .goes_on = with_gradient.defined() ? with_gradient : value,
                             .batch_axis = batch_axis});
}

bool pass_activation(std::string_view name,
                     Tensor& value,
                     const std::vector<ReportedAxis>& axes,
                     int64_t batch_axis) {
  if (!activations_are_recorded()) {
    return false;
  }
  const ValuePlacement placement = placement_of(value, axes);
  Tensor goes_on = replaced(name, value, placement, batch_axis);
  detail::tell(detail::op_observers(), &Observer::value_made,
               ObservedValue{.name = name,
                             .value = value,
                             .placement = placement,
                             .goes_on = goes_on,
                             .batch_axis = batch_axis});
  return take(value, std::move(goes_on));
}

bool replace_activation(std::string_view name,
                        Tensor& value,
                        const std::vector<ReportedAxis>& axes,
                        int64_t batch_axis) {
  return activations_are_replaced() &&
         take(value, replaced(name, value, placement_of(value, axes), batch_axis));
}

std::vector<ReportedAxis> hidden_axes(const Tensor& hidden,
                                      int64_t batch_axis,
                                      const ContextParallelLayout& context,
                                      const TensorParallelLayout& tensor) {
  std::vector<ReportedAxis> axes = {whole_axis(), whole_axis(), whole_axis()};
  axes[static_cast<size_t>(1 - batch_axis)] =
      token_axis(hidden_positions(context, tensor, hidden.size(1 - batch_axis)));
  return axes;
}

std::string layer_value(int64_t layer, std::string_view name) {
  return "layers." + std::to_string(layer) + "." + std::string(name);
}

int64_t layer_of_value(std::string_view name) {
  constexpr std::string_view kStem = "layers.";
  int64_t layer = 0;
  if (name.starts_with(kStem)) {
    name.remove_prefix(kStem.size());
    std::from_chars(name.data(), name.data() + name.size(), layer);
  }
  return layer;
}

}  // namespace tapestry
