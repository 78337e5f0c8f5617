// The obvious loops: what the kernels must compute, said as plainly as possible. Oracle of the
// tests.
#pragma once

#include <cstdint>

namespace tapestry::kernels::reference {

/// C = alpha op(A) op(B) + beta C, with sums in double.
template <class T, class Out>
void gemm(bool trans_a,
          bool trans_b,
          int64_t m,
          int64_t n,
          int64_t k,
          double alpha,
          const T* a,
          int64_t lda,
          const T* b,
          int64_t ldb,
          double beta,
          Out* c,
          int64_t ldc) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t p = 0; p < k; ++p) {
        const T left = trans_a ? a[p * lda + i] : a[i * lda + p];
        const T right = trans_b ? b[j * ldb + p] : b[p * ldb + j];
        if constexpr (sizeof(T) == 2) {
          sum += static_cast<double>(static_cast<float>(left)) * static_cast<float>(right);
        } else {
          sum += static_cast<double>(left) * static_cast<double>(right);
        }
      }
      sum *= alpha;
      if (beta != 0) {
        if constexpr (sizeof(Out) == 2) {
          sum += beta * static_cast<float>(c[i * ldc + j]);
        } else {
          sum += beta * static_cast<double>(c[i * ldc + j]);
        }
      }
      if constexpr (sizeof(Out) == 2) {
        c[i * ldc + j] = Out(static_cast<float>(sum));
      } else {
        c[i * ldc + j] = static_cast<Out>(sum);
      }
    }
  }
}

/// y[o, j] = combine(... combine(combine(start, x[o,0,j]), x[o,1,j]) ..., x[o,n-1,j]) over a
/// contiguous [outer, n, inner], in the type of start.
template <class T, class Acc, class Combine>
void reduce(int64_t outer,
            int64_t n,
            int64_t inner,
            const T* x,
            Acc start,
            const Combine& combine,
            Acc* y) {
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t j = 0; j < inner; ++j) {
      Acc result = start;
      for (int64_t i = 0; i < n; ++i) {
        result = combine(result, x[(o * n + i) * inner + j]);
      }
      y[o * inner + j] = result;
    }
  }
}

}  // namespace tapestry::kernels::reference
