#include "autograd/kernels/gemm/gemm_few_rows.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "autograd/kernels/gemm/gemm.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "tests/autograd/kernels/gemm_testing.h"
#include "tests/cpu_levels.h"

namespace tapestry::kernels {
namespace {

using gemm_testing::Case;

void check_few_rows(const Case& given) {
  const auto product = [](const GemmShape& s, const void* a, const void* b, void* c) {
    few_rows_gemm(s, a, b, c);
  };
  at_every_cpu_level([&] {
    gemm_testing::check<float, float>(product, given);
    gemm_testing::check<BFloat16, BFloat16>(product, given);
    gemm_testing::check<BFloat16, float>(product, given);
    gemm_testing::check<Float16, Float16>(product, given);
    gemm_testing::check<Float16, float>(product, given);
  });
}

TEST(GemmFewRows, EveryNumberOfRowsAndEdges) {
  for (const int64_t m : {1, 2, 3, 4, 5, 6, 7, 11, 13, 16, 33, 64}) {
    for (const int64_t n : {1, 3, 8, 21}) {
      for (const int64_t k : {1, 15, 16, 31, 64, 69}) {
        check_few_rows({.m = m, .n = n, .k = k, .trans_b = true});
        check_few_rows({.m = m, .n = n, .k = k, .trans_b = true, .padded = true});
      }
    }
  }
}

/// Sums over k so long that x goes through the first-level cache in several pieces.
TEST(GemmFewRows, LongSums) {
  for (const int64_t m : {4, 5, 12, 14, 33}) {
    for (const int64_t n : {2, 53}) {
      for (const int64_t k : {1280, 1281, 2700}) {
        check_few_rows({.m = m, .n = n, .k = k, .trans_b = true, .padded = k == 1281});
      }
    }
  }
}

TEST(GemmFewRows, AlphaAndBeta) {
  for (const double alpha : {1.0, -0.5}) {
    for (const double beta : {0.0, 1.0, 2.0}) {
      check_few_rows({.m = 5, .n = 19, .k = 100, .trans_b = true, .alpha = alpha, .beta = beta});
    }
  }
}

/// The bytes of x W^T by gemm(), rows [0, m) of x.
template <class T>
std::vector<char> product_bytes(
    int64_t m, int64_t n, int64_t k, const std::vector<T>& x, const std::vector<T>& w) {
  std::vector<T> y(static_cast<size_t>(m * n));
  gemm({.dtype = dtype_of<T>(),
        .c_dtype = dtype_of<T>(),
        .trans_b = true,
        .m = m,
        .n = n,
        .k = k,
        .lda = k,
        .ldb = k,
        .ldc = n},
       x.data(), w.data(), y.data());
  std::vector<char> bytes(y.size() * sizeof(T));
  std::memcpy(bytes.data(), static_cast<const void*>(y.data()), bytes.size());
  return bytes;
}

/// gemm() takes this way by itself, and then neither companions nor threads change a row.
template <class T>
void check_rows_alone() {
  const int threads = num_threads();
  constexpr int64_t kN = 1111;
  constexpr int64_t kK = 2701;
  const int64_t most = most_few_rows(dtype_of<T>());
  ASSERT_GE(most, 12);
  const auto x = gemm_testing::random_matrix<T>(most * kK, 1);
  const auto w = gemm_testing::random_matrix<T>(kN * kK, 2);
  set_num_threads(1);
  const std::vector<char> all = product_bytes(most, kN, kK, x, w);
  for (const int team : {1, 2, 3}) {
    set_num_threads(team);
    for (const int64_t m : {int64_t{1}, int64_t{2}, int64_t{7}, int64_t{12}, most}) {
      const std::vector<char> some = product_bytes(m, kN, kK, x, w);
      EXPECT_EQ(std::memcmp(some.data(), all.data(), some.size()), 0)
          << m << " of " << most << " rows, " << team << " threads, " << name_of(dtype_of<T>());
    }
  }
  set_num_threads(threads);
}

TEST(GemmFewRows, ARowDependsOnNeitherCompanionsNorThreads) {
  at_every_cpu_level([] {
    check_rows_alone<float>();
    check_rows_alone<BFloat16>();
    check_rows_alone<Float16>();
  });
}

TEST(GemmFewRows, TakesOnlyItsShapes) {
  GemmShape s = {.dtype = kFloat32, .trans_b = true, .m = 2, .n = 8, .k = 8};
  EXPECT_TRUE(prefers_few_rows(s));
  s.trans_a = true;
  EXPECT_FALSE(prefers_few_rows(s));
  s.trans_a = false;
  s.trans_b = false;
  EXPECT_FALSE(prefers_few_rows(s));
  s.trans_b = true;
  s.m = 65;
  EXPECT_FALSE(prefers_few_rows(s));
  s.m = 2;
  s.dtype = kFloat64;
  EXPECT_FALSE(prefers_few_rows(s));
}

}  // namespace
}  // namespace tapestry::kernels
