#include "diagnosis/verify/injection/injected_values.h"

#include <array>
#include <functional>
#include <utility>
#include <vector>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/map.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tape/op.h"
#include "autograd/tape/recompute.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/random.h"
#include "parallel_core/training/log/logging.h"
#include "parallel_core/transformer/activation_recorder.h"

namespace tapestry {

namespace {

constexpr const char* kGradients = "Gradients/";

// Forward: `value`; backward: what `gradient` gives. Where these are undefined: the input, and the
// gradient that comes.
struct InjectedValue {
  static constexpr OpName name = "injected_value";
  Tensor value;
  std::function<Tensor()> gradient;

  Tensor forward(const Tensor& x) const { return value.defined() ? dense_copy(value) : x; }
  Tensor backward(const Tensor& dy) const {
    Tensor given = gradient();
    return given.defined() ? given : dy;
  }
};

// Names of the gradient: its own, else that of what was added last, which has the same one.
std::vector<std::string> gradient_names(const std::string& name) {
  std::vector<std::string> names = {kGradients + name};
  for (const auto& [sum, block] :
       {std::pair{".output", ".per_layer"}, std::pair{".output", ".mlp"},
        std::pair{".per_layer_residual", ".per_layer"}, std::pair{".mlp_residual", ".mlp"},
        std::pair{".attention_residual", ".attention"}}) {
    if (name.ends_with(sum)) {
      names.push_back(kGradients + name.substr(0, name.size() - std::string(sum).size()) + block);
    }
  }
  return names;
}

// Each of the ranks that have the same keys and values has a share of their gradient.
int64_t shares_of_gradient(const std::string& name, const AllConfig& config) {
  for (const char* end : {".k", ".v", ".key", ".value"}) {
    if (name.ends_with(end)) {
      return std::max<int64_t>(1, get_tensor_model_parallel_world_size() /
                                      num_query_groups(config.model_config, layer_of_value(name)));
    }
  }
  return 1;
}

}  // namespace

// Where a value of ours lies.
struct InjectedValues::Place {
  Shape shape;
  DType dtype = kFloat32;
  ValuePlacement placement;
  int64_t batch_axis = 0;
  std::vector<int64_t> samples;
};

InjectedValues::InjectedValues(TrainOneStepCell& cell,
                               const AllConfig& config,
                               ReferenceValues reference)
    : cell_(cell),
      config_(config),
      reference_(std::make_shared<ReferenceValues>(std::move(reference))) {}

void InjectedValues::before(int64_t step) {
  values_.clear();
  gradients_.clear();
  missing_.clear();
  if (reference_->begin_step(step)) {
    scope_ = std::make_unique<ObserverScope>(static_cast<Observer&>(*this));
    active_ = true;
  }
}

// What is computed after the passes, an evaluation for example, is not of the step.
void InjectedValues::phase_begins(const PhaseRun& phase) {
  if (phase.name == "reduce_gradients") {
    active_ = false;
  }
}

void InjectedValues::after(FinishedStep& step) {
  if (scope_ != nullptr) {
    scope_.reset();
    active_ = false;
    reference_->end_step();
    injected_any_ = injected_any_ || !values_.empty();
    std::string text =
        concat("inject_inputs: in step ", step.record.step, " ", values_.size(), " values and ",
               gradients_.size(), " gradients are those of ", reference_->folder());
    if (!missing_.empty()) {
      text += concat("; it lacks ", missing_.size(), ", such as ", *missing_.begin());
    }
    step.lines.push_back(std::move(text));
  }
  if (step.is_last && !injected_any_ && step.failure.empty()) {
    step.failure = concat("inject_inputs: nothing was injected: ", reference_->folder(),
                          " has no value of the samples of any step of this run; are its data the "
                          "same (--inject_data), and its names (--map)?");
  }
}

Tensor InjectedValues::whole_rows(const std::string& name, const Place& place) {
  const NoGradGuard guard;
  const UnobservedScope unobserved;
  const RecomputeScope own(nullptr);
  const int64_t rows = place.shape[place.batch_axis];
  Shape row_shape = place.placement.global_shape;
  row_shape.erase(place.batch_axis);
  Tensor out = empty(place.shape, place.dtype);
  for (int64_t row = 0; row < rows; ++row) {
    Tensor part = reference_->row(name, place.samples[static_cast<size_t>(row)], row_shape);
    if (!part.defined()) {
      return {};
    }
    int64_t axis_of_row = 0;
    for (int64_t axis = 0; axis < place.shape.size(); ++axis) {
      if (axis == place.batch_axis) {
        continue;
      }
      TensorList pieces;
      for (const ValuePlacement::Range& range : place.placement.ranges[static_cast<size_t>(axis)]) {
        pieces.push_back(part.slice(axis_of_row, range.begin, range.end));
      }
      part = pieces.size() == 1 ? pieces.front() : cat(pieces, axis_of_row);
      ++axis_of_row;
    }
    copy_values(part, out.select(place.batch_axis, row));
  }
  return out;
}

Tensor InjectedValues::gradient_of(const std::string& name, const Place& place) {
  if (!active_) {
    return {};
  }
  for (const std::string& candidate : gradient_names(name)) {
    if (!reference_->has(candidate)) {
      continue;
    }
    Tensor gradient = whole_rows(candidate, place);
    if (gradient.defined()) {
      gradients_.insert(name);
      const int64_t shares = shares_of_gradient(name, config_);
      if (shares > 1) {
        const NoGradGuard guard;
        const UnobservedScope unobserved;
        gradient = gradient / static_cast<double>(shares);
      }
      return gradient;
    }
  }
  missing_.insert(kGradients + name);
  return {};
}

Tensor InjectedValues::replacement(const ObservedValue& value) {
  if (!active_ || !cell_.network().is_training() || value.placement.is_partial ||
      !value.value.defined()) {
    return {};
  }
  const std::string name(value.name);
  auto place = std::make_shared<Place>(Place{.shape = value.value.shape(),
                                             .dtype = value.value.dtype(),
                                             .placement = value.placement,
                                             .batch_axis = value.batch_axis,
                                             .samples = random_context().sample_ids});
  if (std::ssize(place->samples) != place->shape[place->batch_axis]) {
    return {};
  }
  Tensor rows = reference_->has(name) ? whole_rows(name, *place) : Tensor();
  bool has_gradient = false;
  for (const std::string& candidate : gradient_names(name)) {
    has_gradient = has_gradient || reference_->has(candidate);
  }
  if (!rows.defined()) {
    missing_.insert(name);
    if (!has_gradient) {
      return {};
    }
  } else {
    values_.insert(name);
  }
  const UnobservedScope unobserved;
  return apply_op(
      InjectedValue{.value = std::move(rows),
                    .gradient = [this, name, place,
                                 reference = reference_] { return gradient_of(name, *place); }},
      value.value);
}

}  // namespace tapestry
