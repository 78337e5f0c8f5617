#include "autograd/kernels/gemm/gemm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "autograd/kernels/machine/parallel_for.h"
#include "tests/autograd/kernels/gemm_testing.h"
#include "tests/cpu_levels.h"

namespace tapestry::kernels {
namespace gemm_test {
namespace {

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
  gemm_testing::check<T, Out>(gemm,
                              {batch, m, n, k, trans_a, trans_b, alpha, beta, padded, share_b});
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
  const auto a = gemm_testing::random_matrix<float>(kSize * kSize, 5);
  const auto b = gemm_testing::random_matrix<BFloat16>(kSize * kSize, 6);
  std::vector<float> expected(kSize * kSize);
  std::vector<float> expected16(kSize * kSize);
  const auto run = [&](std::vector<float>& c, std::vector<float>& c16) {
    GemmShape shape{.m = kSize, .n = kSize, .k = kSize, .lda = kSize, .ldb = kSize, .ldc = kSize};
    shape.trans_b = true;
    gemm(shape, a.data(), a.data(), c.data());
    shape.trans_a = true;
    shape.trans_b = false;
    shape.dtype = kBFloat16;
    gemm(shape, b.data(), b.data(), c16.data());
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
  EXPECT_THAT(std::string(blas_flavour()), ::testing::AllOf(::testing::HasSubstr("OpenBLAS"),
                                                            ::testing::StartsWith("openmp: ")));
}

}  // namespace
}  // namespace gemm_test
}  // namespace tapestry::kernels
