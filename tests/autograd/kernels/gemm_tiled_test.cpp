#include "autograd/kernels/gemm/gemm_tiled.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "autograd/kernels/machine/parallel_for.h"
#include "tests/autograd/kernels/gemm_testing.h"
#include "tests/cpu_levels.h"

namespace tapestry::kernels {
namespace {

using gemm_testing::Case;

/// How a product is called: of 16 bits by conversion to float32, or in pairs.
using Gemm = void (*)(const GemmShape&, const void*, const void*, void*);
void by_items(const GemmShape& s, const void* a, const void* b, void* c) {
  tiled_gemm(s, a, b, c, false);
}
void by_pairs(const GemmShape& s, const void* a, const void* b, void* c) {
  tiled_gemm(s, a, b, c, true);
}

/// Each way at every level that has it: check(an element of A and B, one of C, Gemm).
template <class Check>
void for_dtypes(const Check& check) {
  at_every_cpu_level([&] {
    check(float{}, float{}, &by_items);
    if (has_tiled_gemm(kBFloat16)) {
      check(BFloat16{}, float{}, &by_items);
      check(BFloat16{}, BFloat16{}, &by_items);
    }
    if (has_tiled_gemm(kFloat16)) {
      check(Float16{}, float{}, &by_items);
      check(Float16{}, Float16{}, &by_items);
    }
    if (has_bfloat16_pairs()) {
      check(BFloat16{}, float{}, &by_pairs);
      check(BFloat16{}, BFloat16{}, &by_pairs);
    }
  });
}

template <class T>
bool same_bits(const T* x, const T* y, size_t count) {
  return std::memcmp(static_cast<const void*>(x), static_cast<const void*>(y), count * sizeof(T)) ==
         0;
}

/// Of dense matrices, stored transposed where a flag is set.
template <class T, class Out>
GemmShape dense_product(int64_t m, int64_t n, int64_t k, bool trans_a, bool trans_b) {
  return {.dtype = dtype_of<T>(),
          .c_dtype = dtype_of<Out>(),
          .trans_a = trans_a,
          .trans_b = trans_b,
          .batch = 1,
          .m = m,
          .n = n,
          .k = k,
          .alpha = 1,
          .lda = trans_a ? m : k,
          .ldb = trans_b ? k : n,
          .ldc = n};
}

void check_everywhere(const Case& given) {
  for_dtypes([&](auto in, auto out, Gemm gemm) {
    gemm_testing::check<decltype(in), decltype(out)>(gemm, given);
  });
}

TEST(GemmTiled, TilesAndPanelsOfEveryWidth) {
  for (const int64_t m : {1, 7, 8, 9, 75}) {
    for (const int64_t n : {1, 16, 17, 48, 49, 64, 65, 80, 97, 112, 130}) {
      for (const int64_t k : {1, 2, 31, 33, 64}) {
        for (int flags = 0; flags < 8; ++flags) {
          Case given{.m = m, .n = n, .k = k};
          given.trans_a = (flags & 1) != 0;
          given.trans_b = (flags & 2) != 0;
          given.padded = (flags & 4) != 0;
          given.beta = (m + n) % 2 == 0 ? 0 : 1;
          check_everywhere(given);
        }
      }
    }
  }
}

TEST(GemmTiled, TakesWhatTheLevelHasInstructionsFor) {
  at_every_cpu_level([] {
    const bool converts = cpu_level() >= CpuLevel::kAvx2;
    EXPECT_TRUE(has_tiled_gemm(kFloat32));
    EXPECT_EQ(has_tiled_gemm(kBFloat16), converts);
    EXPECT_EQ(has_tiled_gemm(kFloat16), converts);
    EXPECT_FALSE(has_tiled_gemm(kFloat64));
    EXPECT_EQ(has_bfloat16_pairs(), cpu_level() >= CpuLevel::kAvx512Bf16);
    EXPECT_LE(prefers_bfloat16_pairs(), has_bfloat16_pairs());
  });
}

/// The sums of a 16-bit product are those of the float32 product of the same values.
TEST(GemmTiled, ConvertedFactorsGiveTheBitsOfFloat32Ones) {
  constexpr int64_t kM = 61;
  constexpr int64_t kN = 77;
  constexpr int64_t kK = 131;
  for_dtypes([&](auto in, auto out, Gemm gemm) {
    using T = decltype(in);
    if constexpr (std::is_same_v<decltype(out), float>) {
      if (gemm == &by_pairs) {  // whose two products are added before they meet the sum
        return;
      }
      const auto a = gemm_testing::random_matrix<T>(kM * kK, 31);
      const auto b = gemm_testing::random_matrix<T>(kK * kN, 32);
      const std::vector<float> wide_a(a.begin(), a.end());
      const std::vector<float> wide_b(b.begin(), b.end());
      for (int flags = 0; flags < 4; ++flags) {
        const bool ta = (flags & 1) != 0;
        const bool tb = (flags & 2) != 0;
        GemmShape shape = dense_product<T, float>(kM, kN, kK, ta, tb);
        std::vector<float> c(kM * kN);
        std::vector<float> expected(kM * kN);
        gemm(shape, a.data(), b.data(), c.data());
        shape.dtype = kFloat32;
        gemm(shape, wide_a.data(), wide_b.data(), expected.data());
        EXPECT_TRUE(same_bits(c.data(), expected.data(), c.size())) << flags;
      }
    }
  });
}

TEST(GemmTiled, BlocksOfTheSum) {
  for (const bool trans : {false, true}) {
    check_everywhere({.m = 9,
                      .n = 50,
                      .k = 2 * kMaxDepth + 3,
                      .trans_a = trans,
                      .trans_b = !trans,
                      .alpha = 2,
                      .beta = -3});
    check_everywhere({.m = 17,
                      .n = 30,
                      .k = 4 * kMaxDepth + 2,
                      .trans_a = trans,
                      .trans_b = trans,
                      .padded = true});
  }
}

TEST(GemmTiled, BlocksOfRows) {
  for (const bool trans : {false, true}) {
    check_everywhere({.m = 2067, .n = 70, .k = 20, .trans_a = trans, .trans_b = true, .beta = 1});
    check_everywhere({.m = 2067, .n = 3, .k = 2 * kMaxDepth + 1, .trans_a = trans});
  }
}

TEST(GemmTiled, AnElementHasTheSameBitsInAnyTeamAndAnyPartOfTheProduct) {
  constexpr int64_t kM = 203;
  constexpr int64_t kN = 210;
  const int team = num_threads();
  for_dtypes([&](auto in, auto out, Gemm gemm) {
    using T = decltype(in);
    using Out = decltype(out);
    const int64_t k = 4 * kMaxDepth + 50;  // several blocks
    const auto a = gemm_testing::random_matrix<T>(kM * k, 11);
    const auto b = gemm_testing::random_matrix<T>(k * kN, 12);
    const auto part = [&](int64_t row, int64_t rows, int64_t column, int64_t columns) {
      std::vector<Out> c(static_cast<size_t>(rows * columns));
      const GemmShape shape = {.dtype = dtype_of<T>(),
                               .c_dtype = dtype_of<Out>(),
                               .batch = 1,
                               .m = rows,
                               .n = columns,
                               .k = k,
                               .alpha = 1,
                               .lda = k,
                               .ldb = kN,
                               .ldc = columns};
      gemm(shape, a.data() + row * k, b.data() + column, c.data());
      return c;
    };
    set_num_threads(1);
    const std::vector<Out> whole = part(0, kM, 0, kN);
    for (const int threads : {2, 3, 5}) {
      set_num_threads(threads);
      const std::vector<Out> again = part(0, kM, 0, kN);
      ASSERT_TRUE(same_bits(again.data(), whole.data(), whole.size())) << threads << " threads";
    }
    set_num_threads(2);
    const std::vector<Out> piece = part(13, 101, 19, 75);
    for (int64_t i = 0; i < 101; ++i) {
      ASSERT_TRUE(same_bits(piece.data() + i * 75, whole.data() + (13 + i) * kN + 19, 75))
          << "row " << i;
    }
  });
  set_num_threads(team);
}

/// Whether C is rounded in registers, from memory or by the caller of a float32 product.
TEST(GemmTiled, RoundedSumsHaveTheBitsOfFloat32OnesThatAreRounded) {
  constexpr int64_t kM = 43;
  constexpr int64_t kN = 85;
  constexpr int64_t kK = 6;
  for_dtypes([&](auto in, auto out, Gemm gemm) {
    using T = decltype(in);
    if constexpr (std::is_same_v<T, BFloat16> && std::is_same_v<decltype(out), BFloat16>) {
      auto a = gemm_testing::random_matrix<T>(kM * kK, 51);
      const auto b = gemm_testing::random_matrix<T>(kK * kN, 52);
      // Sums from what float32 denormalizes to what it cannot hold, and NaN.
      const float factors[] = {1e-39F, 1e-38F, 1, 3e38F, std::numeric_limits<float>::quiet_NaN()};
      for (int64_t i = 0; i < kM * kK; ++i) {
        a[i] = T(static_cast<float>(a[i]) * factors[i / kK % 5]);
      }
      for (const double beta : {0.0, 1.0}) {
        GemmShape shape = dense_product<T, T>(kM, kN, kK, false, false);
        std::vector<T> c(kM * kN, T(1e-39F));
        std::vector<float> sums(kM * kN);
        shape.beta = beta;
        const std::vector<T> before = c;
        gemm(shape, a.data(), b.data(), c.data());
        shape.beta = 0;
        shape.c_dtype = kFloat32;
        gemm(shape, a.data(), b.data(), sums.data());
        if (beta == 1) {
          for (size_t i = 0; i < sums.size(); ++i) {
            sums[i] += static_cast<float>(before[i]);
          }
        }
        const std::vector<T> expected(sums.begin(), sums.end());
        EXPECT_TRUE(same_bits(c.data(), expected.data(), c.size())) << beta;
      }
    }
  });
}

/// Of tall products with a small right factor threads take rows, with the bits of one thread.
TEST(GemmTiled, TeamsThatDivideTheRowsGiveTheBitsOfOneThread) {
  constexpr int64_t kMost = 405;
  constexpr int64_t kK = 131;
  const int team = num_threads();
  for_dtypes([&](auto in, auto out, Gemm gemm) {
    using T = decltype(in);
    using Out = decltype(out);
    const auto a = gemm_testing::random_matrix<T>(kMost * kK, 41);
    const auto check = [&](int64_t m, int64_t n) {
      const auto b = gemm_testing::random_matrix<T>(kK * n, 42);
      const auto before = gemm_testing::random_matrix<Out>(m * n, 43);
      for (int flags = 0; flags < 8; ++flags) {
        const bool ta = (flags & 1) != 0;
        const bool tb = (flags & 2) != 0;
        GemmShape shape = dense_product<T, Out>(m, n, kK, ta, tb);
        shape.beta = (flags & 4) != 0 ? 1 : 0;
        const auto product = [&](int threads) {
          set_num_threads(threads);
          std::vector<Out> c(before.begin(), before.end());
          gemm(shape, a.data(), b.data(), c.data());
          return c;
        };
        const std::vector<Out> expected = product(1);
        for (const int threads : {2, 3, 4}) {
          const std::vector<Out> c = product(threads);
          ASSERT_TRUE(same_bits(c.data(), expected.data(), c.size()))
              << threads << " threads, " << m << " x " << n << ", flags " << flags;
        }
      }
    };
    for (const int64_t n : {3, 65, 210}) {
      check(kMost, n);
      check(100, n);  // too few rows for that, unless they are copied
    }
  });
  set_num_threads(team);
}

TEST(GemmTiled, APackedFactorGivesTheBitsOfOneReadInPlace) {
  constexpr int64_t kM = 45;
  constexpr int64_t kN = 53;
  constexpr int64_t kK = 90;
  for_dtypes([&](auto in, auto out, Gemm gemm) {
    using T = decltype(in);
    using Out = decltype(out);
    const auto a = gemm_testing::random_matrix<T>(kM * kK, 21);
    const auto b = gemm_testing::random_matrix<T>(kK * kN, 22);
    std::vector<T> at(a.size());
    std::vector<T> bt(b.size());
    for (int64_t p = 0; p < kK; ++p) {
      for (int64_t i = 0; i < kM; ++i) {
        at[p * kM + i] = a[i * kK + p];
      }
      for (int64_t j = 0; j < kN; ++j) {
        bt[j * kK + p] = b[p * kN + j];
      }
    }
    std::vector<T> shifted(a.size() + 1);  // pairs need not be aligned
    std::copy(a.begin(), a.end(), shifted.begin() + 1);
    std::vector<Out> expected(kM * kN);
    for (int flags = 0; flags < 4; ++flags) {
      const bool ta = (flags & 1) != 0;
      const bool tb = (flags & 2) != 0;
      std::vector<Out> c(kM * kN);
      const GemmShape shape = dense_product<T, Out>(kM, kN, kK, ta, tb);
      gemm(shape, ta ? at.data() : shifted.data() + 1, tb ? bt.data() : b.data(), c.data());
      if (flags == 0) {
        expected = c;
      }
      EXPECT_TRUE(same_bits(c.data(), expected.data(), c.size())) << flags;
    }
  });
}

}  // namespace
}  // namespace tapestry::kernels
