#include "autograd/kernels/gemm/gemm_one_order.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <vector>

#include "autograd/kernels/gemm/gemm.h"
#include "autograd/kernels/gemm/gemm_grouped.h"
#include "autograd/kernels/gemm/gemm_quantized.h"
#include "autograd/kernels/gemm/quantized_blocks.h"
#include "autograd/kernels/machine/one_order.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "tests/autograd/kernels/gemm_testing.h"
#include "tests/cpu_levels.h"

namespace tapestry::kernels {
namespace {

namespace one_order_testing {

/// For several sizes of the team; puts the caller's back.
template <class Check>
void with_teams(const Check& check) {
  const int before = num_threads();
  for (const int team : {1, 2, 3}) {
    SCOPED_TRACE(team);
    set_num_threads(team);
    check();
  }
  set_num_threads(before);
}

template <class T>
std::vector<T> transposed(int64_t rows, int64_t columns, const std::vector<T>& x) {
  std::vector<T> out(x.size());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      out[static_cast<size_t>(j * rows + i)] = x[static_cast<size_t>(i * columns + j)];
    }
  }
  return out;
}

template <class T>
bool same_bytes(const T* a, const T* b, int64_t count) {
  return std::memcmp(static_cast<const void*>(a), static_cast<const void*>(b),
                     static_cast<size_t>(count) * sizeof(T)) == 0;
}

/// Rows of x W^T, each computed alone.
template <class T>
std::vector<T> rows_alone(
    int64_t m, int64_t n, int64_t k, const std::vector<T>& x, const std::vector<T>& w) {
  std::vector<T> y(static_cast<size_t>(m * n));
  for (int64_t i = 0; i < m; ++i) {
    gemm({.dtype = dtype_of<T>(),
          .c_dtype = dtype_of<T>(),
          .trans_b = true,
          .m = 1,
          .n = n,
          .k = k,
          .lda = k,
          .ldb = k,
          .ldc = n},
         x.data() + i * k, w.data(), y.data() + i * n);
  }
  return y;
}

/// The same rows together, in every way that they and W may lie.
template <class T>
void check_rows(int64_t m, int64_t n, int64_t k) {
  const OneOrderScope scope;
  const auto x = gemm_testing::random_matrix<T>(m * k, 1);
  const auto w = gemm_testing::random_matrix<T>(n * k, 2);
  const auto x_transposed = transposed(m, k, x);
  const auto w_transposed = transposed(n, k, w);
  const std::vector<T> expected = rows_alone(m, n, k, x, w);
  with_teams([&] {
    for (const bool trans_a : {false, true}) {
      for (const bool trans_b : {false, true}) {
        std::vector<T> y(expected.size());
        gemm({.dtype = dtype_of<T>(),
              .c_dtype = dtype_of<T>(),
              .trans_a = trans_a,
              .trans_b = trans_b,
              .m = m,
              .n = n,
              .k = k,
              .lda = trans_a ? m : k,
              .ldb = trans_b ? k : n,
              .ldc = n},
             trans_a ? x_transposed.data() : x.data(), trans_b ? w.data() : w_transposed.data(),
             y.data());
        EXPECT_TRUE(same_bytes(y.data(), expected.data(), m * n))
            << m << " rows, " << n << " x " << k << ", " << name_of(dtype_of<T>()) << ", trans "
            << trans_a << trans_b;
      }
    }
  });
}

TEST(GemmOneOrder, ARowHasItsBitsAloneAndAmongAny) {
  at_every_cpu_level([] {
    for (const auto& [m, n, k] :
         std::vector<std::array<int64_t, 3>>{{301, 53, 2701}, {67, 1, 96}, {129, 70, 31}}) {
      check_rows<float>(m, n, k);
      check_rows<BFloat16>(m, n, k);
      check_rows<Float16>(m, n, k);
    }
  });
}

TEST(GemmOneOrder, AreTheProductsOfTheObviousLoop) {
  const OneOrderScope scope;
  const auto product = [](const GemmShape& s, const void* a, const void* b, void* c) {
    gemm(s, a, b, c);
  };
  at_every_cpu_level([&] {
    for (const bool trans : {false, true}) {
      const gemm_testing::Case given = {.batch = 2,
                                        .m = 130,
                                        .n = 37,
                                        .k = 70,
                                        .trans_a = trans,
                                        .trans_b = !trans,
                                        .alpha = trans ? -0.5 : 1,
                                        .beta = 2,
                                        .padded = true};
      gemm_testing::check<float, float>(product, given);
      gemm_testing::check<BFloat16, float>(product, given);
      gemm_testing::check<Float16, Float16>(product, given);
      gemm_testing::check<double, double>(product, given);
    }
  });
}

/// Experts' products: each group's rows meet a matrix of their own.
template <class T>
void check_groups() {
  const OneOrderScope scope;
  constexpr int64_t kN = 45;
  constexpr int64_t kK = 200;
  const std::vector<int64_t> ends = {1, 1, 140, 170, 173};
  const auto groups = static_cast<int64_t>(ends.size());
  const auto x = gemm_testing::random_matrix<T>(ends.back() * kK, 1);
  const auto w = gemm_testing::random_matrix<T>(groups * kN * kK, 2);
  std::vector<T> expected;
  int64_t begin = 0;
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t end = ends[static_cast<size_t>(g)];
    const std::vector<T> own =
        rows_alone<T>(end - begin, kN, kK, {x.begin() + begin * kK, x.begin() + end * kK},
                      {w.begin() + g * kN * kK, w.begin() + (g + 1) * kN * kK});
    expected.insert(expected.end(), own.begin(), own.end());
    begin = end;
  }
  with_teams([&] {
    std::vector<T> y(expected.size());
    grouped_gemm({.dtype = dtype_of<T>(),
                  .c_dtype = dtype_of<T>(),
                  .trans_b = true,
                  .m = ends.back(),
                  .n = kN,
                  .k = kK,
                  .lda = kK,
                  .ldb = kK,
                  .stride_b = kN * kK,
                  .ldc = kN},
                 GroupAxis::kRows, ends, x.data(), w.data(), y.data());
    EXPECT_TRUE(same_bytes(y.data(), expected.data(), std::ssize(y)));
  });
}

TEST(GemmOneOrder, GroupsHaveTheBitsOfTheirRows) {
  at_every_cpu_level([] {
    check_groups<float>();
    check_groups<BFloat16>();
  });
}

/// y = x W^T of rows [begin, end) of x.
template <class T>
std::vector<T> quantized_rows(const BlockMatrix& w,
                              const std::vector<T>& x,
                              int64_t begin,
                              int64_t end) {
  std::vector<T> y(static_cast<size_t>((end - begin) * w.out));
  gemm_quantized(dtype_of<T>(), end - begin, w, x.data() + begin * w.in, w.in, 0, y.data(), w.out);
  return y;
}

template <class T>
void check_quantized(BlockFormat format) {
  const OneOrderScope scope;
  constexpr int64_t kRows = 150;
  constexpr int64_t kOut = 37;
  constexpr int64_t kIn = 6 * kBlockNumbers;
  const auto weights = gemm_testing::random_matrix<float>(kOut * kIn, 2);
  std::vector<char> blocks(static_cast<size_t>(kOut * block_row_bytes(format, kIn)));
  ASSERT_TRUE(encode_blocks(format, kFloat32, kOut, kIn, weights.data(), kIn, blocks.data()));
  const BlockMatrix w = {.format = format, .blocks = blocks.data(), .out = kOut, .in = kIn};
  const auto x = gemm_testing::random_matrix<T>(kRows * kIn, 1);
  with_teams([&] {
    const std::vector<T> all = quantized_rows(w, x, 0, kRows);
    for (int64_t i = 0; i < kRows; i += 7) {
      const std::vector<T> one = quantized_rows(w, x, i, i + 1);
      ASSERT_TRUE(same_bytes(one.data(), all.data() + i * kOut, kOut)) << "row " << i;
    }
  });
}

TEST(GemmOneOrder, QuantizedRowsToo) {
  at_every_cpu_level([] {
    for (const BlockFormat format : {BlockFormat::kQ8_0, BlockFormat::kQ4_0}) {
      check_quantized<float>(format);
      check_quantized<BFloat16>(format);
    }
  });
}

TEST(OneOrderScope, HoldsForTheThreadAndItsLoops) {
  const auto inside = [] {
    std::atomic<int> parts = 0;
    parallel_for(64, 1, [&](int64_t begin, int64_t end) {
      parts += in_one_order() ? static_cast<int>(end - begin) : 0;
    });
    return parts.load();
  };
  with_teams([&] {
    EXPECT_EQ(inside(), 0);
    {
      const OneOrderScope scope;
      EXPECT_EQ(inside(), 64);
      {
        const OneOrderScope outside(false);
        EXPECT_EQ(inside(), 0);
      }
      EXPECT_EQ(inside(), 64);
    }
    EXPECT_EQ(inside(), 0);
  });
}

}  // namespace one_order_testing

}  // namespace
}  // namespace tapestry::kernels
