// Where ops of exact mode (autograd/kernels/machine/exact.h) put a parameter's gradient.
#pragma once

#include "autograd/kernels/exact/exact_sums.h"
#include "autograd/tape/main_grad.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

/// The gradient of `leaf` for an op to return: its main_grad of exact sums, to which `add` has
/// added; for who asks without such a one (grad()) sums of its own, rounded once.
template <class Add>
Tensor exact_gradient(const Tensor& leaf, const Add& add) {
  if (const Tensor sums = exact_main_grad(leaf); sums.defined()) {
    add(sums);
    return sums;
  }
  const Tensor sums = zeros(leaf.shape(), kFloat64);
  add(sums);
  const Tensor gradient = empty(leaf.shape(), kFloat32);
  kernels::exact_to_float32(sums.numel(), sums.data<double>(), gradient.data<float>());
  return gradient.to(leaf.dtype());
}

}  // namespace tapestry
