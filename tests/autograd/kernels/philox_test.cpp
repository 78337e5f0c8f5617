#include "autograd/kernels/philox.h"

#include <limits>

#include "fused_testing.h"

namespace tapestry::testing {
namespace {

constexpr uint64_t kSeed = 0x123456789abcdef0;
constexpr uint64_t kStream = 77;

// Known answers of the authors' library (Random123, kat_vectors, philox4x32 with 10 rounds).
TEST(Philox, KnownAnswers) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(kernels::philox(0, 0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(kernels::philox(~0ULL, ~0ULL, ~0ULL),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(kernels::philox(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
  static_assert(kernels::philox(0, 0, 0)[0] == 0x6627e8d5);
}

TEST(Philox, WordsOfAnIndex) {
  const auto block = kernels::philox(kSeed, 21, kStream);
  EXPECT_EQ(kernels::random_word(kSeed, kStream, 42), block[0] | (uint64_t{block[1]} << 32U));
  EXPECT_EQ(kernels::random_word(kSeed, kStream, 43), block[2] | (uint64_t{block[3]} << 32U));
}

TEST(Philox, BernoulliIsTheWordBelowTheThreshold) {
  at_every_cpu_level([] {
    for (const uint64_t first : {0ULL, 1ULL, 7ULL, (1ULL << 34U) + 2}) {
      std::vector<char> y(5003, 2);
      kernels::fill_bernoulli(5003, kSeed, kStream, first, 0.3, reinterpret_cast<bool*>(y.data()));
      const auto threshold = static_cast<uint64_t>(std::llround(0.3 * 0x1p32));
      for (uint64_t i = 0; i < 5003; ++i) {
        const uint32_t word = kernels::philox(kSeed, (first + i) / 4, kStream)[(first + i) % 4];
        ASSERT_EQ(y[i], word < threshold ? 1 : 0) << i;
      }
    }
  });
}

TEST(Philox, BernoulliOfCertainties) {
  bool y[1000];
  kernels::fill_bernoulli(1000, 1, 2, 3, 1.0, y);
  EXPECT_TRUE(std::all_of(y, y + 1000, [](bool b) { return b; }));
  kernels::fill_bernoulli(1000, 1, 2, 3, 0.0, y);
  EXPECT_TRUE(std::none_of(y, y + 1000, [](bool b) { return b; }));
  EXPECT_EQ(kernels::bernoulli_threshold(0.5), uint64_t{1} << 31U);
}

TEST(Philox, UniformIsTheWordScaled) {
  at_every_cpu_level([] {
    for (const uint64_t first : {0ULL, 5ULL}) {
      Array doubles(kFloat64, 1001);
      Array floats(kFloat32, 1001);
      kernels::fill_uniform(kFloat64, 1001, kSeed, kStream, first, -2, 3, doubles.data());
      kernels::fill_uniform(kFloat32, 1001, kSeed, kStream, first, -2, 3, floats.data());
      for (int64_t i = 0; i < 1001; ++i) {
        const uint64_t word = kernels::random_word(kSeed, kStream, first + i);
        ASSERT_EQ(doubles[i], -2 + 5 * (static_cast<double>(word >> 11U) * 0x1p-53));
        ASSERT_NEAR(floats[i], doubles[i], 5e-7);
      }
    }
  });
}

TEST(Philox, UniformStaysBelowHigh) {
  for (const DType dtype : {kFloat32, kFloat64, kBFloat16, kFloat16}) {
    for (const auto& [low, high] : {std::pair{0.0, 1.0}, {-1.0, 0.0}, {256.0, 258.0}, {2.0, 2.0}}) {
      Array y(dtype, 20000);
      kernels::fill_uniform(dtype, 20000, kSeed, kStream, 0, low, high, y.data());
      for (int64_t i = 0; i < y.size(); ++i) {
        ASSERT_GE(y[i], low) << name_of(dtype);
        ASSERT_TRUE(y[i] < high || low == high) << name_of(dtype) << " " << y[i];
      }
    }
  }
}

TEST(Philox, NormalIsBoxMuller) {
  for_each_dtype([](DType dtype) {
    for (const uint64_t first : {0ULL, 3ULL}) {
      for (const int64_t n : {0, 1, 2, 1001}) {
        Array y(dtype, n);
        kernels::fill_normal(dtype, n, kSeed, kStream, first, 1, 2, y.data());
        Doubles expected(n);
        for (int64_t i = 0; i < n; ++i) {
          const uint64_t index = first + i;
          const uint64_t even = index / 2 * 2;
          const uint64_t w0 = kernels::random_word(kSeed, kStream, even);
          const uint64_t w1 = kernels::random_word(kSeed, kStream, even + 1);
          const double r = std::sqrt(-2 * std::log(((w0 >> 11U) + 1.0) / 0x1p53));
          const double angle = 2 * M_PI * (static_cast<double>(w1 >> 11U) / 0x1p53);
          expected[i] = 1 + 2 * r * (index % 2 == 0 ? std::cos(angle) : std::sin(angle));
        }
        expect_close(y, expected, "normal");
      }
    }
  });
}

TEST(Philox, Moments) {
  constexpr int64_t kN = 200000;
  Array normal(kFloat32, kN);
  Array uniform(kFloat32, kN);
  std::vector<char> kept(kN);
  kernels::fill_normal(kFloat32, kN, 1, 2, 0, 0, 1, normal.data());
  kernels::fill_uniform(kFloat32, kN, 1, 3, 0, 0, 1, uniform.data());
  kernels::fill_bernoulli(kN, 1, 4, 0, 0.9, reinterpret_cast<bool*>(kept.data()));
  double sums[6] = {};
  for (int64_t i = 0; i < kN; ++i) {
    sums[0] += normal[i] / kN;
    sums[1] += normal[i] * normal[i] / kN;
    sums[2] += std::pow(normal[i], 4) / kN;
    sums[3] += uniform[i] / kN;
    sums[4] += uniform[i] * uniform[i] / kN;
    sums[5] += static_cast<double>(kept[i]) / kN;
  }
  EXPECT_NEAR(sums[0], 0, 0.012);  // five standard deviations each
  EXPECT_NEAR(sums[1], 1, 0.016);
  EXPECT_NEAR(sums[2], 3, 0.11);
  EXPECT_NEAR(sums[3], 0.5, 0.0033);
  EXPECT_NEAR(sums[4], 1.0 / 3, 0.0034);
  EXPECT_NEAR(sums[5], 0.9, 0.0034);
}

TEST(Philox, PartsMakeTheWhole) {
  at_every_cpu_level([] {
    expect_same_for_any_team([] {
      const int64_t n = 50001;
      Array normal(kFloat32, n);
      Array uniform(kFloat32, n);
      Array kept(kFloat32, n);
      kernels::fill_normal(kFloat32, n, kSeed, kStream, 9, 0, 1, normal.data());
      kernels::fill_uniform(kFloat32, n, kSeed, kStream, 9, 0, 1, uniform.data());
      std::vector<char> bits(n);
      kernels::fill_bernoulli(n, kSeed, kStream, 9, 0.5, reinterpret_cast<bool*>(bits.data()));
      for (int64_t i = 0; i < n; ++i) {
        kept.set(i, bits[i]);
      }
      Array part(kFloat32, 100);
      kernels::fill_normal(kFloat32, 100, kSeed, kStream, 9 + 777, 0, 1, part.data());
      for (int64_t i = 0; i < 100; ++i) {
        EXPECT_EQ(part[i], normal[777 + i]);
      }
      return std::vector<Array>{normal, uniform, kept};
    });
  });
}

TEST(Philox, Dropout) {
  for_each_dtype([](DType dtype) {
    for (const uint64_t first : {0, 3}) {
      const int64_t n = 1029;
      Array x = random_array(dtype, n, 1);
      std::vector<char> keep(n);
      kernels::fill_bernoulli(n, kSeed, kStream, first, 0.75, reinterpret_cast<bool*>(keep.data()));
      // What is dropped is 0, whatever it was.
      const auto dropped = std::find(keep.begin(), keep.end(), 0) - keep.begin();
      const auto kept = std::find(keep.begin(), keep.end(), 1) - keep.begin();
      x.set(dropped, NAN);
      x.set(kept, std::numeric_limits<double>::infinity());
      Doubles expected(n);
      for (int64_t i = 0; i < n; ++i) {
        expected[i] = keep[i] != 0 ? x[i] / 0.75 : 0;
      }
      kernels::dropout(dtype, n, kSeed, kStream, first, 0.75, 1 / 0.75, x.data(), x.data());
      expect_close(x, expected, "dropout");
      Array all = random_array(dtype, n, 2);
      const Doubles before = all.values();
      kernels::dropout(dtype, n, kSeed, kStream, first, 1, 1, all.data(), all.data());
      expect_close(all, before, "nothing dropped", 0);
    }
  });
}

}  // namespace
}  // namespace tapestry::testing
