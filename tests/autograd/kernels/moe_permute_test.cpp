#include "autograd/kernels/moe_permute.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "autograd/kernels/machine/scratch.h"
#include "tests/autograd/kernels/fused_testing.h"

namespace tapestry::testing {
namespace {

struct RowsOfTokens {
  int64_t tokens;
  int64_t topk;
  int64_t rows;              // that are kept
  std::vector<int32_t> map;  // the row of each choice, -1: none

  kernels::TokenRows view() const { return {tokens, topk, map.data()}; }
};

/// A permutation that is no order of anything; every `dropped`th assignment has no row.
RowsOfTokens scattered(int64_t tokens, int64_t topk, int64_t dropped) {
  RowsOfTokens out{tokens, topk, 0, std::vector<int32_t>(static_cast<size_t>(tokens * topk), -1)};
  std::vector<size_t> kept;
  for (size_t i = 0; i < out.map.size(); ++i) {
    if (dropped == 0 || i % static_cast<size_t>(dropped) != 0) {
      kept.push_back(i);
    }
  }
  std::mt19937_64 engine(5);
  std::shuffle(kept.begin(), kept.end(), engine);
  for (const size_t i : kept) {
    out.map[i] = static_cast<int32_t>(out.rows++);
  }
  return out;
}

std::vector<RowsOfTokens> all_maps() {
  return {scattered(0, 2, 0),  scattered(1, 1, 0), scattered(1, 3, 0),
          scattered(70, 2, 0), scattered(9, 4, 3), scattered(5, 2, 1)};
}

/// Half a unit in the last place of what is stored, and of each step in the compute type.
double roundings(DType dtype, int64_t steps) {
  const double compute = dtype == kFloat64 ? 0x1p-53 : 0x1p-24;
  const double stored = dtype == kBFloat16 ? 0x1p-8 : dtype == kFloat16 ? 0x1p-11 : compute;
  return 1.01 * (stored + static_cast<double>(steps) * compute);
}
/// The smallest steps of float16.
double least_step(DType dtype) { return dtype == kFloat16 ? 0x1p-24 : 0; }

TEST(MoePermuteKernel, CopiesEachTokenToItsRows) {
  for_each_dtype([](DType dtype) {
    for (const RowsOfTokens& map : all_maps()) {
      for (const int64_t n : {0, 1, 7, 600}) {
        const int64_t stride = n + 3;
        const Array x = random_array(dtype, map.tokens * stride, 1);
        Array y(dtype, map.rows * n);
        kernels::permute_rows({dtype, map.view(), n, x.data(), stride, y.data()});
        for (size_t i = 0; i < map.map.size(); ++i) {
          for (int64_t j = 0; map.map[i] >= 0 && j < n; ++j) {
            const auto token = static_cast<int64_t>(i) / map.topk;
            ASSERT_EQ(y[map.map[i] * n + j], x[token * stride + j]);
          }
        }
      }
    }
  });
}

TEST(MoePermuteKernel, SumsTheRowsOfEachToken) {
  for_each_dtype([](DType dtype) {
    for (const RowsOfTokens& map : all_maps()) {
      for (const int64_t n : {0, 1, 7, 600}) {
        const int64_t stride = n + 3;
        const Array x = random_array(dtype, map.rows * stride, 1);
        const Array gates = random_array(statistics_dtype(dtype), map.tokens * map.topk, 2);
        for (const bool with_gates : {false, true}) {
          Array y(dtype, map.tokens * n);
          kernels::unpermute_rows({dtype, map.view(), n, x.data(), stride,
                                   with_gates ? gates.data() : nullptr, y.data()});
          for (int64_t at = 0; at < map.tokens * n; ++at) {
            double sum = 0;
            double magnitude = 0;
            for (int64_t i = at / n * map.topk; i < (at / n + 1) * map.topk; ++i) {
              const int64_t row = map.map[static_cast<size_t>(i)];
              const double term =
                  row < 0 ? 0 : (with_gates ? gates[i] : 1) * x[row * stride + at % n];
              sum += term;
              magnitude += std::abs(term);
            }
            ASSERT_LE(std::abs(y[at] - sum),
                      roundings(dtype, map.topk + 1) * magnitude + least_step(dtype));
          }
        }
      }
    }
  });
}

// Three terms whose float32 sum depends on their order.
TEST(MoePermuteKernel, AddsInTheOrderOfRows) {
  const std::vector<int32_t> rows = {2, 0, 1};
  const Array x(kFloat32, Doubles{0x1p30, -0x1p30, 1});
  Array y(kFloat32, 1);
  kernels::unpermute_rows({kFloat32, {1, 3, rows.data()}, 1, x.data(), 1, nullptr, y.data()});
  EXPECT_EQ(y[0], 1);  // in the order of choices it is 0
}

TEST(MoePermuteKernel, BackwardOfTheSum) {
  for_each_dtype([](DType dtype) {
    for (const RowsOfTokens& map : all_maps()) {
      for (const int64_t n : {0, 1, 7, 1100}) {
        const int64_t stride = n + 3;
        const int64_t choices = map.tokens * map.topk;
        const Array x = random_array(dtype, map.rows * stride, 1);
        const Array dy = random_array(dtype, map.tokens * stride, 2);
        const Array gates = random_array(statistics_dtype(dtype), choices, 3);
        Array dx(dtype, map.rows * n);
        Array dgates(statistics_dtype(dtype), choices);
        kernels::UnpermuteRowsBackward call{dtype, map.view(), n, x.data(), stride};
        call.gates = gates.data();
        call.dy = dy.data();
        call.dy_stride = stride;
        call.dx = dx.data();
        call.dgates = dgates.data();
        kernels::unpermute_rows_backward(call);
        for (int64_t i = 0; i < choices; ++i) {
          const int64_t row = map.map[static_cast<size_t>(i)];
          if (row < 0) {
            ASSERT_EQ(dgates[i], 0);
            continue;
          }
          double sum = 0;
          double magnitude = 0;
          for (int64_t j = 0; j < n; ++j) {
            const double slope = dy[i / map.topk * stride + j];
            const double term = slope * x[row * stride + j];
            sum += term;
            magnitude += std::abs(term);
            ASSERT_LE(std::abs(dx[row * n + j] - gates[i] * slope),
                      roundings(dtype, 1) * std::abs(gates[i] * slope) + least_step(dtype));
          }
          ASSERT_LE(std::abs(dgates[i] - sum),
                    roundings(statistics_dtype(dtype), n + 2) * magnitude);
        }
        // Each of the two alone.
        Array dx_alone(dtype, map.rows * n);
        Array dgates_alone(statistics_dtype(dtype), choices);
        call.dgates = nullptr;
        call.x = nullptr;
        call.dx = dx_alone.data();
        kernels::unpermute_rows_backward(call);
        call.x = x.data();
        call.dx = nullptr;
        call.dgates = dgates_alone.data();
        kernels::unpermute_rows_backward(call);
        EXPECT_TRUE(dx_alone.same_bits(dx));
        EXPECT_TRUE(dgates_alone.same_bits(dgates));
      }
    }
  });
}

TEST(MoePermuteKernel, SameBitsForAnyTeam) {
  for_each_dtype([](DType dtype) {
    const RowsOfTokens map = scattered(500, 3, 7);
    constexpr int64_t kN = 130;
    const Array rows = random_array(dtype, map.rows * kN, 1);
    const Array tokens = random_array(dtype, map.tokens * kN, 2);
    const Array gates = random_array(statistics_dtype(dtype), map.tokens * map.topk, 3);
    expect_same_for_any_team([&] {
      Array sorted(dtype, map.rows * kN);
      Array y(dtype, map.tokens * kN);
      Array dx(dtype, map.rows * kN);
      Array dgates(statistics_dtype(dtype), map.tokens * map.topk);
      kernels::permute_rows({dtype, map.view(), kN, tokens.data(), kN, sorted.data()});
      kernels::unpermute_rows({dtype, map.view(), kN, rows.data(), kN, gates.data(), y.data()});
      kernels::unpermute_rows_backward({dtype, map.view(), kN, rows.data(), kN, gates.data(),
                                        tokens.data(), kN, dx.data(), dgates.data()});
      return std::vector<Array>{sorted, y, dx, dgates};
    });
  });
}

// Results of this size go past the caches where they lie on whole lines, which Scratch does.
TEST(MoePermuteKernel, LargeResultsHaveTheBitsOfThoseOffTheLines) {
  at_every_cpu_level([] {
    for (const DType dtype : {kFloat32, kBFloat16}) {
      const int64_t n = 1536 / size_of(dtype);
      const RowsOfTokens map = scattered(2900, 2, 11);
      const Array rows = random_array(dtype, map.rows * n, 1);
      const Array tokens = random_array(dtype, map.tokens * n, 2);
      const Array gates = random_array(kFloat32, map.tokens * map.topk, 3);
      Array dgates(kFloat32, map.tokens * map.topk);
      const auto results = [&](int64_t shift) {
        const kernels::Scratch memory(3 * map.tokens * map.topk * n * size_of(dtype) + 64);
        char* sorted = static_cast<char*>(memory.get()) + shift;
        char* dx = sorted + map.rows * n * size_of(dtype);
        char* y = dx + map.rows * n * size_of(dtype);
        kernels::permute_rows({dtype, map.view(), n, tokens.data(), n, sorted});
        kernels::unpermute_rows({dtype, map.view(), n, rows.data(), n, gates.data(), y});
        kernels::unpermute_rows_backward({dtype, map.view(), n, rows.data(), n, gates.data(),
                                          tokens.data(), n, dx, dgates.data()});
        return std::vector<char>(sorted, y + map.tokens * n * size_of(dtype));
      };
      EXPECT_TRUE(results(0) == results(8)) << name_of(dtype);
    }
  });
}

TEST(MoePermuteKernel, SameBitsAtLevelsWithFusedMultiplyAdd) {
  if (cpu_level() < CpuLevel::kAvx512) {
    GTEST_SKIP() << "no AVX-512 here";
  }
  for_each_dtype([](DType dtype) {
    for (const int64_t n : {5, 64, 150}) {
      for (const int64_t topk : {1, 2, 3}) {
        const RowsOfTokens map = scattered(40, topk, 7);
        const Array rows = random_array(dtype, map.rows * n, 1);
        const Array tokens = random_array(dtype, map.tokens * n, 2);
        const Array gates = random_array(statistics_dtype(dtype), map.tokens * topk, 3);
        const auto results = [&](CpuLevel level) {
          const CpuLevelGuard guard(level);
          std::vector<Array> out = {Array(dtype, map.tokens * n), Array(dtype, map.rows * n),
                                    Array(statistics_dtype(dtype), map.tokens * topk)};
          kernels::unpermute_rows(
              {dtype, map.view(), n, rows.data(), n, gates.data(), out[0].data()});
          kernels::unpermute_rows_backward({dtype, map.view(), n, rows.data(), n, gates.data(),
                                            tokens.data(), n, out[1].data(), out[2].data()});
          return out;
        };
        const std::vector<Array> wide = results(CpuLevel::kAvx512);
        const std::vector<Array> narrow = results(CpuLevel::kAvx2);
        for (size_t i = 0; i < wide.size(); ++i) {
          EXPECT_TRUE(wide[i].same_bits(narrow[i]))
              << i << " " << name_of(dtype) << " " << n << " " << topk;
        }
      }
    }
  });
}

}  // namespace
}  // namespace tapestry::testing
