#include "autograd/tape/anomaly.h"

#include <algorithm>

#include "autograd/kernels/reduce.h"
#include "autograd/tape/gradient_sum.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/error.h"

namespace tapestry::detail {

namespace {

bool all_finite(std::span<const Tensor> tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const Tensor& t) {
    if (!t.defined() || !is_floating(t.dtype())) {
      return true;
    }
    const Tensor dense = t.is_contiguous() ? t : contiguous_copy(t);
    return kernels::all_finite(dense.dtype(), dense.numel(), dense.raw());
  });
}

}  // namespace

void check_anomaly(std::string_view name,
                   std::string_view pass,
                   std::span<const Tensor> inputs,
                   std::span<const Tensor> outputs) {
  check<RuntimeError>(all_finite(outputs) || !all_finite(inputs), name, ": its ", pass,
                      " made a NaN or an infinity out of finite inputs");
}

}  // namespace tapestry::detail
