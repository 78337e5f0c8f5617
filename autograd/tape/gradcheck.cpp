#include "autograd/tape/gradcheck.h"

#include <algorithm>
#include <cmath>

#include "autograd/tape/engine.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/generator.h"

namespace tapestry {

namespace {

// Deterministic weights in [-1, 1], none near zero.
Tensor weights_like(const Tensor& t, uint64_t seed) {
  Tensor out = empty(t.shape(), t.dtype());
  auto* data = out.data<double>();
  for (int64_t i = 0; i < out.numel(); ++i) {
    const uint64_t bits = combine(seed, static_cast<uint64_t>(i));
    const double unit = static_cast<double>(bits >> 11U) * 0x1p-53;
    data[i] = (bits & 1U) != 0 ? 0.25 + 0.75 * unit : -0.25 - 0.75 * unit;
  }
  return out;
}

double weighted_sum(const TensorList& outputs, uint64_t seed) {
  double sum = 0;
  for (size_t k = 0; k < outputs.size(); ++k) {
    if (outputs[k].dtype() != kFloat64) {
      continue;
    }
    const std::vector<double> values = outputs[k].to_vector<double>();
    const std::vector<double> weights = weights_like(outputs[k], seed + k).to_vector<double>();
    for (size_t i = 0; i < values.size(); ++i) {
      sum += values[i] * weights[i];
    }
  }
  return sum;
}

// Distinct element offsets of a (possibly expanded) layout, in elements from its first.
std::vector<int64_t> element_offsets(const Tensor& t) {
  std::vector<int64_t> offsets{0};
  if (t.numel() == 0) {
    return {};
  }
  for (int64_t axis = 0; axis < t.dim(); ++axis) {
    if (t.strides()[axis] == 0) {
      continue;
    }
    std::vector<int64_t> next;
    for (const int64_t offset : offsets) {
      for (int64_t i = 0; i < t.shape()[axis]; ++i) {
        next.push_back(offset + i * t.strides()[axis]);
      }
    }
    offsets = std::move(next);
  }
  return offsets;
}

// Sum of the gradient's entries that belong to the stored element at `offset`.
double gradient_at(const Tensor& gradient, const Tensor& layout, int64_t offset) {
  const std::vector<double> values = gradient.to_vector<double>();
  const Strides& strides = layout.strides();
  Shape index = Shape::filled(layout.dim(), 0);
  double sum = 0;
  int64_t position = 0;
  for (const double value : values) {
    if (position == offset) {
      sum += value;
    }
    for (int64_t axis = layout.dim() - 1; axis >= 0; --axis) {
      position += strides[axis];
      if (++index[axis] < layout.shape()[axis]) {
        break;
      }
      position -= strides[axis] * layout.shape()[axis];
      index[axis] = 0;
    }
  }
  return sum;
}

}  // namespace

GradcheckResult gradcheck(const DifferentiableFunction& function,
                          const TensorList& inputs,
                          GradcheckOptions options) {
  TensorList wanted;
  for (const Tensor& input : inputs) {
    if (input.defined() && input.requires_grad()) {
      check<TypeError>(input.dtype() == kFloat64,
                       "gradcheck: differences need float64 inputs, got ", describe(input));
      wanted.push_back(input);
    }
  }
  check<ValueError>(!wanted.empty(), "gradcheck: no input requires a gradient");
  TensorList roots;
  TensorList weights;
  {
    const EnableGradGuard guard;
    const TensorList outputs = function(inputs);
    for (size_t k = 0; k < outputs.size(); ++k) {
      if (outputs[k].dtype() == kFloat64 && outputs[k].requires_grad()) {
        roots.push_back(outputs[k]);
        weights.push_back(weights_like(outputs[k], options.seed + k));
      }
    }
  }
  // Without a graph (a derivative that is zero, or one that was lost) the gradient is zero, and the
  // differences have to say so too.
  const TensorList gradients =
      roots.empty() ? TensorList(wanted.size()) : grad(roots, wanted, weights, {}, true);

  const NoGradGuard guard;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const Tensor& input = wanted[i];
    auto* data = input.data<double>();
    for (const int64_t offset : element_offsets(input)) {
      const double saved = data[offset];
      const double step = options.step * std::max(1.0, std::abs(saved));
      data[offset] = saved + step;
      const double above = weighted_sum(function(inputs), options.seed);
      data[offset] = saved - step;
      const double below = weighted_sum(function(inputs), options.seed);
      data[offset] = saved;
      const double numerical = (above - below) / (2 * step);
      const double analytical =
          gradients[i].defined() ? gradient_at(gradients[i], input, offset) : 0;
      const double bound =
          options.absolute + options.relative * std::max(std::abs(numerical), std::abs(analytical));
      if (!(std::abs(numerical - analytical) <= bound)) {
        return {false, concat("input ", i, " (", describe(input), "), element at offset ", offset,
                              ": backward gives ", analytical, ", differences give ", numerical)};
      }
    }
  }
  return {};
}

GradcheckResult gradgradcheck(const DifferentiableFunction& function,
                              const TensorList& inputs,
                              GradcheckOptions options) {
  // The gradients as a function of the inputs and of the output gradients.
  TensorList extended = inputs;
  size_t num_roots = 0;
  {
    const EnableGradGuard guard;
    const TensorList outputs = function(inputs);
    for (size_t k = 0; k < outputs.size(); ++k) {
      if (outputs[k].dtype() == kFloat64 && outputs[k].requires_grad()) {
        extended.push_back(weights_like(outputs[k], options.seed + 100 + k).set_requires_grad());
        ++num_roots;
      }
    }
  }
  const size_t num_inputs = inputs.size();
  const auto first_gradients = [&](const TensorList& all) {
    const EnableGradGuard guard;
    const TensorList own(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(num_inputs));
    TensorList roots;
    for (const Tensor& output : function(own)) {
      if (output.dtype() == kFloat64 && output.requires_grad()) {
        roots.push_back(output);
      }
    }
    const TensorList weights(all.begin() + static_cast<std::ptrdiff_t>(num_inputs), all.end());
    TensorList wanted;
    for (const Tensor& input : own) {
      if (input.defined() && input.requires_grad()) {
        wanted.push_back(input);
      }
    }
    TensorList out;
    for (const Tensor& gradient : grad(roots, wanted, weights, {.create_graph = true}, true)) {
      if (gradient.defined()) {
        out.push_back(gradient);
      }
    }
    return out;
  };
  check<ValueError>(num_roots > 0, "gradgradcheck: no output depends on the inputs");
  return gradcheck(first_gradients, extended, options);
}

}  // namespace tapestry
