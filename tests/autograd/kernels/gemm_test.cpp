#include "autograd/kernels/gemm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <thread>
#include <vector>

#include "autograd/kernels/parallel_for.h"
#include "autograd/kernels/reference.h"
#include "tests/autograd/kernels/cpu_levels.h"

namespace tapestry::kernels {
namespace {

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

template <class T, class Out>
void check(int64_t batch,
           int64_t m,
           int64_t n,
           int64_t k,
           bool trans_a,
           bool trans_b,
           double alpha,
           double beta,
           bool padded,
           bool share_b) {
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
  gemm_batched(dtype_of<T>(), dtype_of<Out>(), trans_a, trans_b, batch, m, n, k, alpha, a.data(),
               lda, stride_a, b.data(), ldb, stride_b, beta, c.data(), ldc, stride_c);
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

template <class T, class Out>
void check_all() {
  struct Size {
    int64_t batch, m, n, k;
  };
  for (const Size s : {Size{1, 1, 1, 1}, Size{1, 3, 5, 7}, Size{1, 1, 9, 4}, Size{1, 9, 1, 4},
                       Size{1, 5, 6, 0}, Size{1, 0, 6, 2}, Size{1, 4, 0, 2}, Size{0, 4, 4, 4},
                       Size{3, 17, 33, 20}, Size{9, 8, 8, 16}, Size{1, 70, 130, 64}}) {
    for (int flags = 0; flags < 16; ++flags) {
      for (const auto& [alpha, beta] :
           std::vector<std::pair<double, double>>{{1, 0}, {1, 1}, {2, -3}, {0, 2}}) {
        check<T, Out>(s.batch, s.m, s.n, s.k, (flags & 1) != 0, (flags & 2) != 0, alpha, beta,
                      (flags & 4) != 0, (flags & 8) != 0);
      }
    }
  }
}

TEST(GemmTest, FloatsInAllOrientationsStridesAndBatches) {
  check_all<float, float>();
  check_all<double, double>();
}

TEST(GemmTest, SixteenBitsAtEveryLevel) {
  at_every_cpu_level([] {
    check_all<BFloat16, BFloat16>();
    check_all<BFloat16, float>();
    check_all<Float16, Float16>();
    check_all<Float16, float>();
  });
}

TEST(GemmTest, Integers) {
  check_all<int32_t, int32_t>();
  check_all<int64_t, int64_t>();
}

TEST(GemmTest, LongSumsCrossTheBlocksOfTheWidenedProduct) {
  at_every_cpu_level([] {
    check<BFloat16, BFloat16>(1, 5, 1030, 1100, false, true, 1, 1, true, false);
    check<BFloat16, float>(1, 1029, 6, 513, true, false, 0.5, 1, false, false);
    check<Float16, float>(1, 3, 1025, 700, false, false, 1, 0, true, false);
  });
}

TEST(GemmTest, NestedAndConcurrentCallsAgreeWithASerialOne) {
  constexpr int64_t kSize = 96;
  const auto a = random_matrix<float>(kSize * kSize, 5);
  const auto b = random_matrix<BFloat16>(kSize * kSize, 6);
  std::vector<float> expected(kSize * kSize);
  std::vector<float> expected16(kSize * kSize);
  const auto run = [&](std::vector<float>& c, std::vector<float>& c16) {
    gemm(kFloat32, kFloat32, false, true, kSize, kSize, kSize, 1, a.data(), kSize, a.data(), kSize,
         0, c.data(), kSize);
    gemm(kBFloat16, kFloat32, true, false, kSize, kSize, kSize, 1, b.data(), kSize, b.data(), kSize,
         0, c16.data(), kSize);
  };
  run(expected, expected16);
  std::vector<std::vector<float>> c(8, std::vector<float>(kSize * kSize));
  std::vector<std::vector<float>> c16(8, std::vector<float>(kSize * kSize));
  parallel_for(4, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      run(c[i], c16[i]);
    }
  });
  std::vector<std::thread> threads;
  for (size_t i = 4; i < 8; ++i) {
    threads.emplace_back([&, i] {
      set_num_threads(1);
      run(c[i], c16[i]);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (size_t i = 0; i < 8; ++i) {
    for (size_t j = 0; j < expected.size(); ++j) {
      ASSERT_NEAR(c[i][j], expected[j], 1e-4);
      ASSERT_NEAR(c16[i][j], expected16[j], 1e-4);
    }
  }
}

TEST(GemmTest, NamesTheFlavourOfBlas) {
  EXPECT_THAT(std::string(blas_flavour()),
              testing::AllOf(testing::HasSubstr("OpenBLAS"), testing::StartsWith("openmp: ")));
}

}  // namespace
}  // namespace tapestry::kernels
