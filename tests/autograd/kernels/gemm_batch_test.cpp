#include "autograd/kernels/gemm/gemm_batch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "autograd/kernels/gemm/gemm.h"
#include "tests/autograd/kernels/fused_testing.h"

namespace tapestry::kernels {
namespace {

using testing::Array;

GemmShape shape_of(int64_t batch, int64_t m, int64_t n, int64_t k) {
  GemmShape s{};
  s.dtype = s.c_dtype = kFloat32;
  s.batch = batch;
  s.m = m;
  s.n = n;
  s.k = k;
  return s;
}

/// The share of a team that is busy when it takes the units in parts of equal number.
double busy(const GemmShape& s, const GemmBatch& spread, int64_t team) {
  const int64_t units = s.batch * spread.parts;
  double longest = 0;
  for (int64_t rank = 0; rank < team; ++rank) {
    double rows = 0;
    for (int64_t unit = units * rank / team; unit < units * (rank + 1) / team; ++unit) {
      rows += static_cast<double>(std::min(spread.rows, s.m - unit % spread.parts * spread.rows));
    }
    longest = std::max(longest, rows);
  }
  return static_cast<double>(s.batch * s.m) / (longest * static_cast<double>(team));
}

TEST(GemmBatchTest, FewProductsKeepManyCoresBusy) {
  for (const int64_t batch : {2, 5, 12, 33, 48, 100, 127}) {
    for (const int64_t m : {256, 512, 1000}) {
      const GemmShape s = shape_of(batch, m, 128, 64);
      const GemmBatch spread = spread_batch(s, 32, true);
      ASSERT_TRUE(spread.spread) << batch << " of " << m;
      EXPECT_LT((spread.parts - 1) * spread.rows, m);
      EXPECT_GE(spread.parts * spread.rows, m);
      // Whole products of a batch of 48 would keep 0.75 busy. With less to do, units would be too
      // small to be worth it.
      if (batch * m * 128 * 64 >= int64_t{4 * 32} << 19) {
        EXPECT_GE(busy(s, spread, 32), 0.8) << batch << " of " << m;
      }
    }
  }
}

TEST(GemmBatchTest, WholeProductsWhereRowsCannotBeSplitOrNeedNotBe) {
  EXPECT_EQ(spread_batch(shape_of(48, 256, 128, 64), 32, false).parts, 1);
  EXPECT_EQ(spread_batch(shape_of(128, 256, 128, 64), 32, true).parts, 1);
  EXPECT_FALSE(spread_batch(shape_of(3, 4096, 4096, 4096), 32, true).spread);
  EXPECT_FALSE(spread_batch(shape_of(1, 1024, 1024, 1024), 2, true).spread);
}

TEST(GemmBatchTest, SameBitsForAnyTeam) {
  at_every_cpu_level([] {
    for (const DType dtype : {kFloat32, kBFloat16}) {
      for (const bool trans : {false, true}) {
        // The last block of rows has a single one.
        constexpr int64_t kBatch = 3;
        constexpr int64_t kM = 257;
        constexpr int64_t kN = 96;
        constexpr int64_t kK = 80;
        const Array a = testing::random_array(dtype, kBatch * kM * kK, 1);
        const Array b = testing::random_array(dtype, kBatch * kN * kK, 2);
        testing::expect_same_for_any_team([&] {
          Array c = testing::random_array(dtype, kBatch * kM * kN, 3);
          gemm({.dtype = dtype,
                .c_dtype = dtype,
                .trans_a = trans,
                .trans_b = !trans,
                .batch = kBatch,
                .m = kM,
                .n = kN,
                .k = kK,
                .alpha = 1.5,
                .lda = trans ? kM : kK,
                .stride_a = kM * kK,
                .ldb = trans ? kN : kK,
                .stride_b = kN * kK,
                .beta = 0.5,
                .ldc = kN,
                .stride_c = kM * kN},
               a.data(), b.data(), c.data());
          return std::vector<Array>{c};
        });
      }
    }
  });
}

}  // namespace
}  // namespace tapestry::kernels
