#include "tests/autograd/ops/op_samples.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "autograd/tensor/factory.h"
#include "autograd/tensor/generator.h"

namespace tapestry {

namespace {

std::vector<std::unique_ptr<OpSampleSet>>& registered_sets() {
  static std::vector<std::unique_ptr<OpSampleSet>> sets;
  return sets;
}

double unit(uint64_t stream, int64_t i) {
  return static_cast<double>(combine(stream, static_cast<uint64_t>(i)) >> 11U) * 0x1p-53;
}

template <class F>
Tensor fill(const Shape& shape, const F& f) {
  std::vector<double> values(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = f(static_cast<int64_t>(i));
  }
  return tensor(values, shape);
}

}  // namespace

OpSample::OpSample(SampleFunction function_, TensorList inputs_)
    : function(std::move(function_)), inputs(std::move(inputs_)) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].defined() && is_floating(inputs[i].dtype())) {
      wanted.push_back(i);
    }
  }
}

OpSample& OpSample::differentiable(std::vector<size_t> which) {
  wanted = std::move(which);
  return *this;
}

OpSample& OpSample::second_order(bool value) {
  has_second_order = value;
  return *this;
}

OpSample& OpSample::rounds(int outputs, int gradients) {
  output_roundings = outputs;
  gradient_roundings = gradients;
  return *this;
}

OpSample& OpSample::refuses(DType dtype) {
  refused.push_back(dtype);
  return *this;
}

OpSample& OpSample::no_layouts() {
  compares_layouts = false;
  return *this;
}

OpSample& OpSample::threads_may_round() {
  compares_threads = false;
  return *this;
}

OpSampleSet::OpSampleSet(std::string_view op) : op_(op) {}

OpSample& OpSampleSet::add_sample(SampleFunction function, TensorList inputs) {
  return samples_.emplace_back(std::move(function), std::move(inputs))
      .rounds(output_roundings_, gradient_roundings_);
}

uint64_t OpSampleSet::next_stream() { return combine(stream_of(op_), ++draws_); }

Tensor OpSampleSet::uniform(const Shape& shape, double low, double high) {
  const uint64_t stream = next_stream();
  return fill(shape, [&](int64_t i) { return low + (high - low) * unit(stream, i); });
}

Tensor OpSampleSet::randn(const Shape& shape) {
  const uint64_t stream = next_stream();
  // The sum of three uniform numbers on [-1, 1] has variance 1.
  return fill(shape, [&](int64_t i) {
    return 2 * (unit(stream, 3 * i) + unit(stream, 3 * i + 1) + unit(stream, 3 * i + 2)) - 3;
  });
}

Tensor OpSampleSet::positive(const Shape& shape) { return uniform(shape, 0.4, 2.4); }

Tensor OpSampleSet::nonzero(const Shape& shape) {
  const uint64_t stream = next_stream();
  return fill(shape, [&](int64_t i) {
    const double magnitude = 0.4 + 2 * unit(stream, 2 * i);
    return unit(stream, 2 * i + 1) < 0.5 ? -magnitude : magnitude;
  });
}

Tensor OpSampleSet::distinct(const Shape& shape) {
  const uint64_t stream = next_stream();
  const int64_t count = shape.numel();
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int64_t a, int64_t b) { return unit(stream, a) < unit(stream, b); });
  // An odd multiple of an eighth, so that no value is zero.
  const int64_t middle = count / 2;
  return fill(shape, [&](int64_t i) {
    return 0.25 * static_cast<double>(order[static_cast<size_t>(i)] - middle) + 0.125;
  });
}

Tensor OpSampleSet::integers(const Shape& shape, int64_t high) {
  const uint64_t stream = next_stream();
  std::vector<int64_t> values(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<int64_t>(combine(stream, i) % static_cast<uint64_t>(high));
  }
  return tensor(values, shape);
}

Tensor OpSampleSet::integers_as_floats(const Shape& shape) {
  const uint64_t stream = next_stream();
  return fill(shape, [&](int64_t i) {
    return static_cast<double>(combine(stream, static_cast<uint64_t>(i)) % 3);
  });
}

Tensor OpSampleSet::bools(const Shape& shape) {
  const uint64_t stream = next_stream();
  Tensor out = empty(shape, kBool);
  for (int64_t i = 0; i < out.numel(); ++i) {
    out.data<bool>()[i] = unit(stream, i) < 0.5;
  }
  return out;
}

bool register_op_samples(std::unique_ptr<OpSampleSet> set) {
  registered_sets().push_back(std::move(set));
  return true;
}

const std::vector<OpSampleSet*>& op_sample_sets() {
  static const std::vector<OpSampleSet*> sorted = [] {
    std::vector<OpSampleSet*> sets;
    for (const auto& set : registered_sets()) {
      set->define();
      sets.push_back(set.get());
    }
    std::sort(sets.begin(), sets.end(),
              [](const OpSampleSet* a, const OpSampleSet* b) { return a->op() < b->op(); });
    return sets;
  }();
  return sorted;
}

}  // namespace tapestry
