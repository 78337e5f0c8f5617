// Products of any kind against the obvious loop.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "autograd/kernels/gemm/gemm_shape.h"
#include "autograd/kernels/machine/dtype.h"
#include "autograd/kernels/reference.h"

namespace tapestry::kernels::gemm_testing {

template <class T>
std::vector<T> random_matrix(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<T> x(static_cast<size_t>(count));
  for (T& v : x) {
    const auto number = static_cast<int>(random() % 2001) - 1000;
    if constexpr (std::is_integral_v<T>) {
      v = static_cast<T>(number);
    } else {
      v = T(static_cast<float>(number) * 1e-3F);
    }
  }
  return x;
}

template <class T>
double as_double(T x) {
  if constexpr (sizeof(T) == 2) {
    return static_cast<float>(x);
  } else {
    return static_cast<double>(x);
  }
}

/// float32 sums of k terms of size <= 1, then the rounding of the output type.
template <class T, class Out>
double tolerance(int64_t k, double exact) {
  if (std::is_integral_v<T>) {
    return 0;
  }
  const double sums = (std::is_same_v<T, double> ? 1e-15 : 3e-7) * static_cast<double>(k + 2);
  const double rounding = sizeof(Out) == 8               ? 1e-15
                          : sizeof(Out) == 4             ? 1e-7
                          : std::is_same_v<Out, Float16> ? 0x1p-11
                                                         : 0x1p-8;
  return sums + rounding * std::abs(exact) * 1.01;
}

struct Case {
  int64_t batch = 1;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  bool trans_a = false;
  bool trans_b = false;
  double alpha = 1;
  double beta = 0;
  bool padded = false;  // leading dimensions and strides larger than the matrices, and odd
  bool share_b = false;
};

/// gemm(GemmShape, a, b, c)
template <class T, class Out, class Gemm>
void check(const Gemm& gemm, const Case& given) {
  const auto& [batch, m, n, k, trans_a, trans_b, alpha, beta, padded, share_b] = given;
  const int64_t pad = padded ? 3 : 0;
  const int64_t lda = (trans_a ? m : k) + pad;
  const int64_t ldb = (trans_b ? k : n) + pad;
  const int64_t ldc = n + pad;
  const int64_t stride_a = (trans_a ? k : m) * lda + pad;
  const int64_t stride_b = share_b ? 0 : (trans_b ? n : k) * ldb + pad;
  const int64_t stride_c = m * ldc + pad;
  const auto a = random_matrix<T>(stride_a * batch + 1, 1);
  const auto b =
      random_matrix<T>((trans_b ? n : k) * ldb + stride_b * std::max<int64_t>(0, batch - 1) + 1, 2);
  auto c = random_matrix<Out>(stride_c * batch + 1, 3);
  if (beta == 0 && batch > 0 && n > 0 && !std::is_integral_v<Out>) {
    for (int64_t i = 0; i < m; ++i) {
      c[i * ldc] = Out(std::nanf(""));  // must not survive
    }
  }
  auto expected = c;
  for (int64_t i = 0; i < batch; ++i) {
    reference::gemm(trans_a, trans_b, m, n, k, alpha, a.data() + i * stride_a, lda,
                    b.data() + i * stride_b, ldb, beta, expected.data() + i * stride_c, ldc);
  }
  const GemmShape shape = {
      dtype_of<T>(), dtype_of<Out>(), trans_a, trans_b,  batch, m,   n,       k, alpha,
      lda,           stride_a,        ldb,     stride_b, beta,  ldc, stride_c};
  gemm(shape, a.data(), b.data(), c.data());
  for (size_t i = 0; i < c.size(); ++i) {
    const double exact = as_double(expected[i]);
    // `expected` is itself rounded, hence twice the rounding of the type.
    const double allowed = 2 * tolerance<T, Out>(k, exact);
    ASSERT_LE(std::abs(as_double(c[i]) - exact), allowed)
        << name_of(dtype_of<T>()) << " -> " << name_of(dtype_of<Out>()) << " batch " << batch << " "
        << m << "x" << n << "x" << k << " trans " << trans_a << trans_b << " alpha " << alpha
        << " beta " << beta << " padded " << padded << " at " << i << ": " << as_double(c[i])
        << ", expected " << exact;
  }
}

}  // namespace tapestry::kernels::gemm_testing
