#include "autograd/ops/heads/logit_chunks.h"

#include "autograd/kernels/gemm/gemm.h"
#include "autograd/ops/activation.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/map.h"
#include "autograd/ops/rows.h"
#include "autograd/tape/grad_mode.h"

namespace tapestry {

Tensor rows_between(const Tensor& t, int64_t columns, int64_t begin, int64_t end) {
  return alias(t, {end - begin, columns}, {columns, 1}, t.offset() + begin * columns);
}

Tensor entries_between(const Tensor& t, int64_t begin, int64_t end) {
  return alias(t, {end - begin}, {1}, t.offset() + begin);
}

void fill_with_zeros(const Tensor& t) {
  copy_values(broadcast_view(scalar(0, t.dtype()), t.shape()), t);
}

void multiply_into(
    const Tensor& a, bool trans_a, const Tensor& b, bool trans_b, double beta, const Tensor& out) {
  kernels::gemm({.dtype = a.dtype(),
                 .c_dtype = out.dtype(),
                 .trans_a = trans_a,
                 .trans_b = trans_b,
                 .m = out.shape()[0],
                 .n = out.shape()[1],
                 .k = a.shape()[trans_a ? 0 : 1],
                 .lda = a.shape()[1],
                 .ldb = b.shape()[1],
                 .beta = beta,
                 .ldc = out.shape()[1]},
                a.raw(), b.raw(), out.raw());
}

Tensor LogitForm::apply_to(const Tensor& products) const {
  if (is_plain()) {
    return {};
  }
  const NoGradGuard guard;
  const Tensor capped = soft_cap(products.to(wide_dtype(products.dtype())), scale, cap);
  copy_values(capped.to(products.dtype()), products);
  return cap == 0 ? full({1}, scale, capped.dtype())
                  : mul(add(mul(square(mul(capped, 1 / cap)), -1.0), 1.0), scale);
}

void LogitForm::pull_back(const Tensor& gradient, const Tensor& factor) {
  if (factor.defined()) {
    const NoGradGuard guard;
    copy_values(mul(gradient.to(factor.dtype()), factor).to(gradient.dtype()), gradient);
  }
}

}  // namespace tapestry
