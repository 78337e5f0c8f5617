#include "optim/grad_clip.h"

#include <algorithm>
#include <cmath>

#include "autograd/kernels/elementwise.h"
#include "autograd/kernels/reduce.h"
#include "autograd/kernels/strided.h"
#include "autograd/ops/map.h"
#include "autograd/tensor/error.h"

namespace tapestry::optim {

namespace {

void check_limit(double clip_value) {
  check<ValueError>(clip_value > 0, "clipping: the limit clip_value must be above 0, got ",
                    clip_value);
}

// Runs one in-place kernel with a number over a tensor of any strides.
void scalar_in_place(kernels::ScalarOp op, const Tensor& t, double s) {
  const int64_t item = size_of(t.dtype());
  kernels::apply_scalar(kernels::scalar_row(op, t.dtype()), static_cast<int>(t.dim()),
                        t.shape().begin(), t.raw(), t.strides().begin(), item, s, t.raw(),
                        t.strides().begin(), item);
  t.bump_version();
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
  return std::isfinite(norm) ? std::min(1.0, clip_value / (norm + 1e-6)) : 1.0;
}

double clip_grad_norm(const TensorList& gradients, double clip_value) {
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
  for (const Tensor& gradient : gradients) {
    if (gradient.defined()) {
      scalar_in_place(kernels::ScalarOp::kClampMin, gradient, -clip_value);
      scalar_in_place(kernels::ScalarOp::kClampMax, gradient, clip_value);
    }
  }
}

}  // namespace tapestry::optim
