#include "optim/grad_clip.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "autograd/kernels/elementwise/elementwise.h"
#include "autograd/kernels/reduce.h"
#include "autograd/ops/map.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/overlap.h"
#include "autograd/tensor/strided_view.h"

namespace tapestry::optim {

namespace {

void check_limit(double clip_value) {
  check<ValueError>(clip_value > 0, "clipping: the limit clip_value must be above 0, got ",
                    clip_value);
}

// Runs one in-place kernel with a number over a tensor of any strides.
void scalar_in_place(kernels::ScalarOp op, const Tensor& t, double s) {
  kernels::apply_scalar(kernels::scalar_row(op, t.dtype()), extent_of(t), view_of(t), s,
                        view_of(t));
  t.bump_version();
}

// Each element must be scaled once: neither a tensor whose elements share memory nor two tensors
// that share some can be.
void check_separate(const TensorList& gradients) {
  std::vector<std::pair<const std::byte*, const std::byte*>> dense_ranges;
  for (const Tensor& t : gradients) {
    if (!t.defined() || t.numel() == 0) {
      continue;
    }
    check<RuntimeError>(!elements_overlap(t), "clipping: elements of the gradient ", describe(t),
                        " with strides ", t.strides(),
                        " share memory, so it cannot be changed in place; give a clone()");
    if (t.is_contiguous()) {
      const auto* begin = static_cast<const std::byte*>(t.raw());
      dense_ranges.emplace_back(begin, begin + t.numel() * size_of(t.dtype()));
    }
  }
  std::sort(dense_ranges.begin(), dense_ranges.end());
  for (size_t i = 1; i < dense_ranges.size(); ++i) {
    check<RuntimeError>(dense_ranges[i - 1].second <= dense_ranges[i].first,
                        "clipping: two of the gradients share memory, which would be scaled twice; "
                        "give each of them once, or a clone()");
  }
}

}  // namespace

double global_norm(const TensorList& tensors) {
  double sum = 0;
  for (const Tensor& t : tensors) {
    if (t.defined()) {
      const Tensor values = dense(t);
      sum += kernels::sum_of_squares(values.dtype(), values.numel(), values.raw());
    }
  }
  return std::sqrt(sum);
}

double clip_coefficient(double norm, double clip_value) {
  check_limit(clip_value);
  const bool clips = std::isfinite(norm) && norm > clip_value;
  return clips ? clip_value / (norm + 1e-6) : 1.0;
}

double clip_grad_norm(const TensorList& gradients, double clip_value) {
  check_separate(gradients);
  const double norm = global_norm(gradients);
  const double coefficient = clip_coefficient(norm, clip_value);
  if (coefficient < 1) {
    for (const Tensor& gradient : gradients) {
      if (gradient.defined()) {
        scalar_in_place(kernels::ScalarOp::kMul, gradient, coefficient);
      }
    }
  }
  return norm;
}

void clip_grad_value(const TensorList& gradients, double clip_value) {
  check_limit(clip_value);
  check_separate(gradients);
  for (const Tensor& gradient : gradients) {
    if (gradient.defined()) {
      scalar_in_place(kernels::ScalarOp::kClampMin, gradient, -clip_value);
      scalar_in_place(kernels::ScalarOp::kClampMax, gradient, clip_value);
    }
  }
}

}  // namespace tapestry::optim
