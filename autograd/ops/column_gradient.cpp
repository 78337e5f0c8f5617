#include "autograd/ops/column_gradient.h"

#include "autograd/tape/engine.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

Tensor column_gradient(
    const Tensor& parameter, DType dtype, int64_t n, bool needed, kernels::ColumnSums& out) {
  if (!needed) {
    return {};
  }
  if (Tensor target = main_grad_target(parameter);
      target.defined() && dtype != kFloat64 && target.is_contiguous()) {
    out = {target.raw(), target.dtype(), true};
    return target;
  }
  Tensor gradient = empty({n}, dtype);
  out = {gradient.raw(), dtype, false};
  return gradient;
}

}  // namespace tapestry
