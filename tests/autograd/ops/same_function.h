// Comparison of a fused op with its composed twin.
#pragma once

#include "autograd/ops/random.h"
#include "autograd/tape/engine.h"
#include "autograd/tensor/tensor.h"
#include "tests/autograd/ops/expect_close.h"

namespace tapestry {

template <class F>
Tensor gradient_of(const F& f, const Tensor& x, const Tensor& dy) {
  const Tensor leaf = x.detach().clone().set_requires_grad();
  return grad(f(leaf), {leaf}, dy)[0];
}

/// Equal values and gradients at x, for some dy.
template <class F, class G>
void expect_same_function(const F& fused, const G& twin, const Tensor& x) {
  const Tensor y = twin(x);
  expect_close(fused(x), y, 1e-14);
  const Tensor dy = normal(0, 2, y.shape(), kFloat64, RandomKey{2, 99, 0});
  expect_close(gradient_of(fused, x, dy), gradient_of(twin, x, dy), 1e-13);
}

}  // namespace tapestry
