// What reduce.cpp asks of isa/reduce.cpp: reductions of one block to partial results, which are
// double for floating dtypes and int64_t for integers and bool, eight bytes either way.
#pragma once

#include <cstdint>

#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/dtype.h"

namespace tapestry::kernels {

enum class Reducer { kSum, kProd, kMax, kMin, kSumSquares, kAny, kAll, kAllFinite };

/// Partial results are double (else int64_t).
constexpr bool has_double_partial(Reducer reducer, DType dtype) {
  return is_floating(dtype) && reducer <= Reducer::kSumSquares;
}

TAPESTRY_DECLARE_PER_ISA(
    void reduce_row(Reducer reducer, DType dtype, int64_t n, const void* x, void* partial);
    void reduce_columns(Reducer reducer,
                        DType dtype,
                        int64_t n,
                        int64_t stride,
                        int64_t columns,
                        const void* x,
                        void* partials);
    void merge_partials(Reducer reducer, DType dtype, int64_t n, const void* from, void* into);
    void axpy_row(DType dtype, int64_t n, double a, const void* x, void* y))

}  // namespace tapestry::kernels
