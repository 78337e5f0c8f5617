#include "autograd/kernels/gemm/row_dots.h"

#include "fused_testing.h"

namespace tapestry::testing {
namespace {

Array dots(DType dtype, int64_t rows, int64_t columns, int64_t n, const Array& x, const Array& w) {
  Array y(dtype, rows * columns);
  kernels::row_dots(dtype, rows, columns, n, x.data(), w.data(), y.data());
  return y;
}

TEST(RowDots, MatchLoops) {
  for (const DType dtype : {kFloat32, kFloat64}) {
    for (const int64_t rows : {0, 1, 5, 300}) {
      for (const int64_t columns : {1, 2, 8, 13, 60}) {
        for (const int64_t n : {0, 1, 7, 16, 100}) {
          const Array x = random_array(dtype, rows * n, 1);
          const Array w = random_array(dtype, columns * n, 2);
          const Array y = dots(dtype, rows, columns, n, x, w);
          const double unit = dtype == kFloat32 ? 6e-8 : 1.2e-16;
          for (int64_t r = 0; r < rows; ++r) {
            for (int64_t c = 0; c < columns; ++c) {
              double expected = 0;
              double size = 0;
              for (int64_t k = 0; k < n; ++k) {
                const double product = x[r * n + k] * w[c * n + k];
                expected += product;
                size += std::abs(product);
              }
              // Each of n sums and products is rounded once at most.
              ASSERT_NEAR(y[r * columns + c], expected, unit * static_cast<double>(n + 1) * size)
                  << rows << " " << columns << " " << n;
            }
          }
        }
      }
    }
  }
}

TEST(RowDots, ARowsResultsDependOnNothingElse) {
  const int threads = num_threads();
  for (const int64_t n : {6, 64, 770}) {
    const Array row = random_array(kFloat32, n, 1);
    const Array w = random_array(kFloat32, 61 * n, 2);
    const Array alone = dots(kFloat32, 1, 61, n, row, w);
    for (const int64_t rows : {2, 7, 133, 1000}) {
      Array x(kFloat32, rows * n);
      for (int64_t i = 0; i < rows * n; ++i) {
        x.set(i, row[i % n]);
      }
      set_num_threads(rows == 133 ? 3 : 1);
      const Array y = dots(kFloat32, rows, 61, n, x, w);
      for (int64_t i = 0; i < rows * 61; ++i) {
        ASSERT_EQ(y[i], alone[i % 61]) << i << " of " << rows << ", n " << n;
      }
    }
  }
  set_num_threads(threads);
}

TEST(RowDots, SameBitsAtLevelsWithFusedMultiplyAdd) {
  if (cpu_level() < CpuLevel::kAvx512) {
    GTEST_SKIP() << "no AVX-512 here";
  }
  for (const DType dtype : {kFloat32, kFloat64}) {
    for (const int64_t n : {1, 15, 16, 23, 130}) {
      const Array x = random_array(dtype, 9 * n, 1);
      const Array w = random_array(dtype, 13 * n, 2);
      const Array wide = dots(dtype, 9, 13, n, x, w);
      const CpuLevelGuard guard(CpuLevel::kAvx2);
      EXPECT_TRUE(dots(dtype, 9, 13, n, x, w).same_bits(wide)) << n;
    }
  }
}

}  // namespace
}  // namespace tapestry::testing
