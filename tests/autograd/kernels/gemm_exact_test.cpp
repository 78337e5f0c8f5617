#include "autograd/kernels/gemm/gemm_exact.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "autograd/kernels/elementwise/elementwise.h"
#include "autograd/kernels/exact/exact_sums.h"
#include "autograd/kernels/gemm/gemm.h"
#include "autograd/kernels/gemm/gemm_grouped.h"
#include "autograd/kernels/gemm/gemm_tiled.h"
#include "autograd/kernels/machine/exact.h"
#include "autograd/kernels/machine/one_order.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "tests/autograd/kernels/gemm_testing.h"
#include "tests/cpu_levels.h"

namespace tapestry::kernels {
namespace {

namespace gemm_exact_testing {

using Runs = std::vector<SumRun>;

/// For several sizes of the team; puts the caller's back.
template <class Check>
void for_teams(const Check& check) {
  const int before = num_threads();
  for (const int team : {1, 2, 3}) {
    SCOPED_TRACE("team " + std::to_string(team));
    set_num_threads(team);
    check();
  }
  set_num_threads(before);
}

template <class T>
bool equal_bytes(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         std::memcmp(static_cast<const void*>(a.data()), static_cast<const void*>(b.data()),
                     a.size() * sizeof(T)) == 0;
}

const char* at(const void* x, DType dtype, int64_t elements) {
  return static_cast<const char*>(x) + elements * size_of(dtype);
}

/// op(A) or op(B) in float32, as stored.
std::vector<float> wide(DType dtype, int64_t elements, const void* x) {
  std::vector<float> out(static_cast<size_t>(elements));
  cast_row(dtype, kFloat32)(elements, x, 1, out.data(), 1);
  return out;
}

/// The sums of the leaves [leaf][m, n], each by products of one run after the other.
std::vector<std::vector<float>> sums_of_leaves(const GemmShape& s,
                                               const Runs& runs,
                                               const void* a,
                                               const void* b) {
  std::vector<std::vector<float>> sums;
  GemmShape own = s;
  own.c_dtype = kFloat32;
  own.alpha = 1;
  own.ldc = s.n;
  std::vector<float> wide_a;
  std::vector<float> wide_b;
  if (!has_tiled_gemm(s.dtype)) {
    wide_a = wide(s.dtype, (s.trans_a ? s.k : s.m) * s.lda, a);
    wide_b = wide(s.dtype, (s.trans_b ? s.n : s.k) * s.ldb, b);
    own.dtype = kFloat32;
    a = wide_a.data();
    b = wide_b.data();
  }
  bool ended = true;
  for (const SumRun& run : runs) {
    if (ended) {
      sums.emplace_back(static_cast<size_t>(s.m * s.n), 0.0F);
      own.beta = 0;
    }
    own.k = (std::max(run.begin, run.end) - run.begin + run.step - 1) / run.step;
    own.lda = s.lda * run.step;
    own.ldb = s.ldb * run.step;
    if (run.step == 1) {
      own.lda = s.lda;
      own.ldb = s.ldb;
    }
    if (own.k > 0) {
      tiled_gemm(own, at(a, own.dtype, run.begin * (s.trans_a ? s.lda : 1)),
                 at(b, own.dtype, run.begin * (s.trans_b ? 1 : s.ldb)), sums.back().data());
      own.beta = 1;
    }
    ended = run.ends_leaf;
  }
  return sums;
}

/// Neighbours are added until one is left.
std::vector<float> tree_of(std::vector<std::vector<float>> sums) {
  while (sums.size() > 1) {
    for (size_t i = 0; i < sums.size() / 2; ++i) {
      std::vector<float> pair = sums[2 * i];
      for (size_t j = 0; j < pair.size(); ++j) {
        pair[j] += sums[2 * i + 1][j];
      }
      sums[i] = pair;
    }
    sums.resize(sums.size() / 2);
  }
  return sums[0];
}

template <class Out>
void tree_reference(const GemmShape& s, const Runs& runs, const void* a, const void* b, Out* c) {
  const std::vector<float> sums = tree_of(sums_of_leaves(s, runs, a, b));
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t j = 0; j < s.n; ++j) {
      Out& out = c[i * s.ldc + j];
      const float scaled = sums[static_cast<size_t>(i * s.n + j)] * static_cast<float>(s.alpha);
      out =
          Out(s.beta == 0 ? scaled : scaled + static_cast<float>(s.beta) * static_cast<float>(out));
    }
  }
}

void exact_reference(
    const GemmShape& s, const Runs& runs, const void* a, const void* b, double* sums) {
  for (const std::vector<float>& leaf : sums_of_leaves(s, runs, a, b)) {
    for (int64_t i = 0; i < s.m; ++i) {
      for (int64_t j = 0; j < s.n; ++j) {
        const float term = leaf[static_cast<size_t>(i * s.n + j)] * static_cast<float>(s.alpha);
        sums[i * s.ldc + j] += std::rint(std::ldexp(term, -kExactUnitExponent));
      }
    }
  }
}

Runs equal_leaves(int64_t begin, int64_t end, int64_t leaves) {
  Runs runs;
  for (int64_t i = 0; i < leaves; ++i) {
    runs.push_back({begin + i * (end - begin) / leaves, begin + (i + 1) * (end - begin) / leaves});
  }
  return runs;
}

/// Four leaves, of which one has two runs, one none, and one runs in another order.
Runs odd_leaves(int64_t k) {
  return {{k / 2, k - 3, false}, {1, k / 3}, {k / 3, k / 3},
          {0, 1, false},         {k - 3, k}, {k / 3, k / 2}};
}

template <class T, class Out>
GemmShape shape_of(int64_t m, int64_t n, int64_t k, bool trans_a, bool trans_b, int64_t pad) {
  return {.dtype = dtype_of<T>(),
          .c_dtype = dtype_of<Out>(),
          .trans_a = trans_a,
          .trans_b = trans_b,
          .m = m,
          .n = n,
          .k = k,
          .lda = (trans_a ? m : k) + pad,
          .ldb = (trans_b ? k : n) + pad,
          .ldc = n + pad};
}

template <class T>
struct Factors {
  explicit Factors(const GemmShape& s)
      : a(gemm_testing::random_matrix<T>((s.trans_a ? s.k : s.m) * s.lda, 1)),
        b(gemm_testing::random_matrix<T>((s.trans_b ? s.n : s.k) * s.ldb, 2)) {}
  std::vector<T> a;
  std::vector<T> b;
};

/// Both kinds of sums against the reference, whatever the team.
template <class T, class Out>
void check_sums(const GemmShape& s, const Runs& runs, bool tree = true) {
  SCOPED_TRACE(std::string(name_of(s.dtype)) + " -> " + std::string(name_of(s.c_dtype)) + " " +
               std::to_string(s.m) + " x " + std::to_string(s.n) + " x " + std::to_string(s.k) +
               " trans " + std::to_string(s.trans_a) + std::to_string(s.trans_b));
  const Factors<T> x(s);
  const auto old = gemm_testing::random_matrix<Out>(s.m * s.ldc, 3);
  auto expected = old;
  if (tree) {
    tree_reference(s, runs, x.a.data(), x.b.data(), expected.data());
  }
  std::vector<double> expected_sums(old.size(), 3.0);
  exact_reference(s, runs, x.a.data(), x.b.data(), expected_sums.data());
  for_teams([&] {
    if (tree) {
      auto c = old;
      tree_gemm(s, runs, x.a.data(), x.b.data(), c.data());
      EXPECT_TRUE(equal_bytes(c, expected)) << "tree";
    }
    std::vector<double> sums(old.size(), 3.0);
    exact_sum_gemm(s, runs, x.a.data(), x.b.data(), sums.data());
    EXPECT_TRUE(equal_bytes(sums, expected_sums)) << "exact sums";
  });
}

template <class T, class Out>
void check_shapes() {
  for (int flags = 0; flags < 4; ++flags) {
    const bool trans_a = (flags & 1) != 0;
    const bool trans_b = (flags & 2) != 0;
    const int64_t pad = flags == 1 ? 0 : 3;
    for (const auto& [m, n, k] : std::vector<std::array<int64_t, 3>>{
             {75, 130, 272}, {16, 96, 128}, {1, 1, 40}, {9, 65, 77}}) {
      GemmShape s = shape_of<T, Out>(m, n, k, trans_a, trans_b, pad);
      check_sums<T, Out>(s, equal_leaves(0, k, 8));
      s.beta = 1;
      check_sums<T, Out>(s, odd_leaves(k));
    }
    GemmShape scaled = shape_of<T, Out>(17, 50, 90, trans_a, trans_b, pad);
    scaled.alpha = -0.3;
    scaled.beta = 1.7;
    check_sums<T, Out>(scaled, equal_leaves(0, 90, 2));
  }
}

TEST(GemmExact, SumsOfLeavesAreThoseOfTheirProducts) {
  at_every_cpu_level([] {
    check_shapes<float, float>();
    check_shapes<BFloat16, BFloat16>();
    check_shapes<BFloat16, float>();
    check_shapes<Float16, Float16>();
  });
}

// Leaves that are longer than a block of the sum, and trees whose nodes are in different blocks.
TEST(GemmExact, SumsOverManyBlocks) {
  at_every_cpu_level([] {
    for (const auto& [k, leaves] : std::vector<std::array<int64_t, 2>>{
             {3 * kMaxDepth + 5, 1}, {5 * kMaxDepth + 7, 2}, {9 * kMaxDepth, 8}, {5001, 16}}) {
      const bool trans = k % 2 == 0;
      for (const auto& [m, n] : std::vector<std::array<int64_t, 2>>{{19, 70}, {8, 48}}) {
        const GemmShape s = shape_of<float, float>(m, n, k, trans, !trans, 1);
        check_sums<float, float>(s, equal_leaves(0, k, leaves));
        const GemmShape narrow = shape_of<BFloat16, BFloat16>(m, n, k, trans, trans, 2);
        check_sums<BFloat16, BFloat16>(narrow, equal_leaves(0, k, leaves));
        check_sums<BFloat16, BFloat16>(narrow, odd_leaves(k));
      }
    }
    const int64_t rows = 2 * 1024 + 3;  // more than a block of rows
    const GemmShape tall = shape_of<float, float>(rows, 20, 2 * kMaxDepth + 2, false, true, 0);
    check_sums<float, float>(tall, equal_leaves(0, tall.k, 4));
  });
}

// Rows [length, samples]: the tokens of a sample are `samples` rows apart.
TEST(GemmExact, StepsOfTheSum) {
  constexpr int64_t kSamples = 3;
  constexpr int64_t kChunk = 5;
  Runs runs;
  for (int64_t sample = 0; sample < kSamples; ++sample) {
    for (int64_t leaf = 0; leaf < 4; ++leaf) {
      for (const int64_t chunk : {leaf, 7 - leaf}) {
        runs.push_back({chunk * kChunk * kSamples + sample, (chunk + 1) * kChunk * kSamples,
                        chunk != leaf, kSamples});
      }
    }
  }
  at_every_cpu_level([&] {
    const int64_t k = 8 * kChunk * kSamples;
    check_sums<float, float>(shape_of<float, float>(77, 50, k, true, false, 0), runs, false);
    check_sums<BFloat16, float>(shape_of<BFloat16, float>(77, 50, k, true, false, 1), runs, false);
  });
}

TEST(GemmExact, EmptySumsScale) {
  at_every_cpu_level([] {
    for (const double beta : {0.0, 1.0, 2.0}) {
      GemmShape s = shape_of<BFloat16, BFloat16>(3, 5, 4, false, false, 0);
      s.beta = beta;
      check_sums<BFloat16, BFloat16>(s, {{0, 0}, {2, 2}});
    }
  });
}

TEST(GemmExact, NanAndInfinityTravel) {
  at_every_cpu_level([] {
    const GemmShape s = shape_of<float, float>(9, 20, 32, true, false, 0);
    Factors<float> x(s);
    x.a[3 * s.lda + 2] = std::nanf("");
    x.b[20 * s.ldb + 7] = 1e38F;
    std::vector<double> sums(static_cast<size_t>(s.m * s.n));
    exact_sum_gemm(s, equal_leaves(0, 32, 4), x.a.data(), x.b.data(), sums.data());
    EXPECT_TRUE(std::isnan(sums[2 * 20 + 1]));
    EXPECT_FALSE(std::isfinite(sums[4 * 20 + 7]));
    EXPECT_TRUE(std::isfinite(sums[4 * 20 + 8]));
  });
}

/// Results of all products of exact mode, in the order in which they are made.
template <class T>
std::vector<float> products_of_exact_mode() {
  std::vector<float> all;
  for (int flags = 0; flags < 4; ++flags) {
    const GemmShape s =
        shape_of<T, float>(61, 83, kMaxDepth + 101, (flags & 1) != 0, (flags & 2) != 0, 1);
    const Factors<T> x(s);
    std::vector<float> c(static_cast<size_t>(s.m * s.ldc));
    tree_gemm(s, equal_leaves(0, s.k, 8), x.a.data(), x.b.data(), c.data());
    all.insert(all.end(), c.begin(), c.end());
    const ExactScope scope;
    gemm(s, x.a.data(), x.b.data(), c.data());
    all.insert(all.end(), c.begin(), c.end());
    std::vector<double> sums(c.size());
    exact_sum_gemm(s, equal_leaves(0, s.k, 24), x.a.data(), x.b.data(), sums.data());
    c.resize(sums.size());
    exact_to_float32(std::ssize(sums), sums.data(), c.data());
    all.insert(all.end(), c.begin(), c.end());
  }
  return all;
}

TEST(GemmExact, LevelsWithFusedMultiplyAddsAgree) {
  if (detected_cpu_level() < CpuLevel::kAvx512 || !is_compiled(CpuLevel::kAvx2)) {
    GTEST_SKIP() << "one such level";
  }
  const auto at_level = [](CpuLevel level, auto element) {
    const CpuLevelGuard guard(level);
    return products_of_exact_mode<decltype(element)>();
  };
  EXPECT_TRUE(
      equal_bytes(at_level(CpuLevel::kAvx2, float{}), at_level(CpuLevel::kAvx512, float{})));
  EXPECT_TRUE(
      equal_bytes(at_level(CpuLevel::kAvx2, float{}), at_level(detected_cpu_level(), float{})));
  // Below the level that has pairs.
  EXPECT_TRUE(
      equal_bytes(at_level(CpuLevel::kAvx2, BFloat16{}), at_level(CpuLevel::kAvx512, BFloat16{})));
}

TEST(GemmExact, SubtreesOfRanksMakeTheTree) {
  at_every_cpu_level([] {
    constexpr int64_t kK = 808;
    const GemmShape s = shape_of<BFloat16, float>(30, 70, kK, false, true, 0);
    const Factors<BFloat16> x(s);
    std::vector<float> whole(static_cast<size_t>(s.m * s.n));
    tree_gemm(s, equal_leaves(0, kK, 8), x.a.data(), x.b.data(), whole.data());
    std::vector<float> sum(whole.size());
    for (const int64_t begin : {int64_t{0}, kK / 2}) {
      std::vector<float> half(whole.size());
      tree_gemm(s, equal_leaves(begin, begin + kK / 2, 4), x.a.data(), x.b.data(), half.data());
      for (size_t i = 0; i < sum.size(); ++i) {
        sum[i] += half[i];
      }
    }
    EXPECT_TRUE(equal_bytes(whole, sum));
  });
}

/// The sum that gemm() is in exact mode, where products are fused.
template <class T, class Out>
void one_run(const GemmShape& s, const T* a, const T* b, Out* c) {
  const bool onto_c = s.c_dtype == kFloat32 && s.alpha == 1 && s.beta == 1;
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t j = 0; j < s.n; ++j) {
      Out& out = c[i * s.ldc + j];
      float sum = onto_c ? static_cast<float>(out) : 0.0F;
      for (int64_t p = 0; p < s.k; ++p) {
        const T left = a[s.trans_a ? p * s.lda + i : i * s.lda + p];
        const T right = b[s.trans_b ? j * s.ldb + p : p * s.ldb + j];
        sum = std::fma(static_cast<float>(left), static_cast<float>(right), sum);
      }
      sum *= static_cast<float>(s.alpha);
      if (s.beta != 0 && !onto_c) {
        sum = std::fma(static_cast<float>(s.beta), static_cast<float>(out), sum);
      }
      out = Out(sum);
    }
  }
}

template <class T, class Out>
void check_one_run(GemmShape s) {
  SCOPED_TRACE(std::string(name_of(s.dtype)) + " -> " + std::string(name_of(s.c_dtype)) + " " +
               std::to_string(s.m) + " x " + std::to_string(s.n) + " x " + std::to_string(s.k) +
               " trans " + std::to_string(s.trans_a) + std::to_string(s.trans_b));
  s.batch = 3;
  s.stride_a = (s.trans_a ? s.k : s.m) * s.lda;
  s.stride_b = (s.trans_b ? s.n : s.k) * s.ldb;
  s.stride_c = s.m * s.ldc;
  const auto a = gemm_testing::random_matrix<T>(s.batch * s.stride_a, 1);
  const auto b = gemm_testing::random_matrix<T>(s.batch * s.stride_b, 2);
  const auto old = gemm_testing::random_matrix<Out>(s.batch * s.stride_c, 3);
  auto expected = old;
  for (int64_t i = 0; i < s.batch; ++i) {
    one_run(s, a.data() + i * s.stride_a, b.data() + i * s.stride_b,
            expected.data() + i * s.stride_c);
  }
  for_teams([&] {
    for (const bool one_order : {false, true}) {
      const ExactScope exact;
      const OneOrderScope order(one_order);
      auto c = old;
      gemm(s, a.data(), b.data(), c.data());
      EXPECT_TRUE(equal_bytes(c, expected));
    }
  });
}

TEST(GemmExact, GemmIsOneRun) {
  at_every_cpu_level([] {
    if (cpu_level() < CpuLevel::kAvx2) {
      return;
    }
    for (int flags = 0; flags < 4; ++flags) {
      for (const auto& [m, n, k] : std::vector<std::array<int64_t, 3>>{
               {1, 40, 33}, {30, 1, 70}, {5, 3, 2}, {50, 61, 45}, {2, 3, 2 * kMaxDepth + 9}}) {
        for (const auto& [alpha, beta] :
             std::vector<std::array<double, 2>>{{1, 0}, {1, 1}, {0.3, 0}, {0.5, -0.25}}) {
          const auto shape = [&](auto in, auto out) {
            GemmShape s = shape_of<decltype(in), decltype(out)>(m, n, k, (flags & 1) != 0,
                                                                (flags & 2) != 0, 1);
            s.alpha = alpha;
            s.beta = beta;
            return s;
          };
          check_one_run<float, float>(shape(float{}, float{}));
          check_one_run<Float16, float>(shape(Float16{}, float{}));
          if (!prefers_bfloat16_pairs()) {
            check_one_run<BFloat16, BFloat16>(shape(BFloat16{}, BFloat16{}));
          }
        }
      }
    }
  });
}

/// A row alone, among others and in a group.
template <class T>
void check_rows() {
  const ExactScope scope;
  constexpr int64_t kRows = 130;
  constexpr int64_t kN = 45;
  constexpr int64_t kK = 200;
  const GemmShape s = shape_of<T, T>(kRows, kN, kK, false, true, 0);
  const Factors<T> x(s);
  std::vector<T> expected(kRows * kN);
  for (int64_t i = 0; i < kRows; ++i) {
    GemmShape row = s;
    row.m = 1;
    gemm(row, x.a.data() + i * kK, x.b.data(), expected.data() + i * kN);
  }
  for_teams([&] {
    std::vector<T> y(expected.size());
    gemm(s, x.a.data(), x.b.data(), y.data());
    EXPECT_TRUE(equal_bytes(y, expected));
    std::vector<T> grouped(expected.size());
    grouped_gemm(s, GroupAxis::kRows, std::array<int64_t, 4>{1, 1, 100, kRows}, x.a.data(),
                 x.b.data(), grouped.data());
    EXPECT_TRUE(equal_bytes(grouped, expected)) << "in groups";
  });
}

TEST(GemmExact, ARowHasItsBitsAloneAndAmongAny) {
  at_every_cpu_level([] {
    check_rows<float>();
    check_rows<BFloat16>();
    check_rows<Float16>();
  });
}

}  // namespace gemm_exact_testing

}  // namespace
}  // namespace tapestry::kernels
