#include "autograd/ops/column_gradient.h"

#include "autograd/kernels/exact/exact_sums.h"
#include "autograd/ops/rows.h"
#include "autograd/tape/main_grad.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

Tensor column_gradient(
    const Tensor& parameter, DType dtype, int64_t n, bool needed, kernels::ColumnSums& out) {
  if (!needed) {
    return {};
  }
  if (const Tensor sums = exact_main_grad(parameter); sums.defined()) {
    out = {.out = sums.raw(), .dtype = kFloat64, .accumulate = true, .exact = true};
    return sums;
  }
  if (dtype != kFloat64) {
    if (const auto [buffer, overwrite] = main_grad_target(parameter); buffer.defined()) {
      out = {buffer.raw(), buffer.dtype(), !overwrite};
      return buffer;
    }
  }
  const Tensor gradient = empty({n}, dtype);
  out = {gradient.raw(), dtype, false};
  return gradient;
}

Tensor exact_row_sums(const Tensor& parameter, const Tensor& dy) {
  const Tensor sums = exact_main_grad(parameter);
  if (sums.defined()) {
    const Tensor rows = dense(dy);
    const int64_t n = parameter.numel();
    kernels::add_columns_to_exact(rows.dtype(), n == 0 ? 0 : rows.numel() / n, n, rows.raw(), n,
                                  sums.data<double>());
  }
  return sums;
}

}  // namespace tapestry
