// What reduce.cpp asks of isa/reduce.cpp: reductions of one block to partial results, which are
// double for floating dtypes and int64_t for integers and bool, eight bytes either way.
#pragma once

#include <cstdint>

#include "autograd/kernels/machine/dtype.h"

namespace tapestry::kernels {

enum class Reducer { kSum, kProd, kMax, kMin, kSumSquares, kAny, kAll, kAllFinite };

/// Partial results are double (else int64_t).
constexpr bool has_double_partial(Reducer reducer, DType dtype) {
  return is_floating(dtype) && reducer <= Reducer::kSumSquares;
}

}  // namespace tapestry::kernels
