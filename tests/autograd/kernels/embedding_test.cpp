#include "autograd/kernels/embedding.h"

#include "fused_testing.h"

namespace tapestry::testing {
namespace {

std::vector<int64_t> ids_of(int64_t n, int64_t vocab) {
  std::vector<int64_t> ids(n);
  for (int64_t i = 0; i < n; ++i) {
    ids[i] = i % 4 == 0 ? vocab - 1 : i * 5 % vocab;  // one id is frequent
  }
  return ids;
}

TEST(Embedding, CopiesRows) {
  for_each_dtype([](DType dtype) {
    for (const int64_t dim : {0, 1, 7, 600}) {
      const Array weight = random_array(dtype, 9 * dim, 1);
      for (const int64_t n : {0, 1, 50}) {
        const std::vector<int64_t> ids = ids_of(n, 9);
        Array y(dtype, n * dim);
        kernels::embedding(dtype, dtype, n, dim, weight.data(), ids.data(), y.data());
        for (int64_t i = 0; i < n * dim; ++i) {
          ASSERT_EQ(y[i], weight[ids[i / dim] * dim + i % dim]);
        }
      }
    }
  });
}

TEST(Embedding, CopiesIntegersAndBool) {
  const int64_t ids[] = {2, 0, 2};
  const int64_t longs[] = {1, 2, 3, 4, 5, INT64_MIN};
  int64_t long_rows[6];
  kernels::embedding(kInt64, kInt64, 3, 2, longs, ids, long_rows);
  EXPECT_TRUE(
      std::equal(long_rows, long_rows + 6, std::begin({5L, INT64_MIN, 1L, 2L, 5L, INT64_MIN})));
  const bool bits[] = {true, false, true};
  bool bit_rows[3];
  kernels::embedding(kBool, kBool, 3, 1, bits, ids, bit_rows);
  EXPECT_TRUE(bit_rows[0] && bit_rows[1] && bit_rows[2]);
  const int64_t one[] = {1};
  kernels::embedding(kBool, kBool, 1, 1, bits, one, bit_rows);
  EXPECT_FALSE(bit_rows[0]);
}

TEST(Embedding, BackwardAccumulates) {
  for_each_dtype([](DType dtype) {
    for (const int64_t dim : {1, 7, 600}) {
      for (const int64_t n : {0, 1, 300}) {
        const std::vector<int64_t> ids = ids_of(n, 9);
        const Array dy = random_array(dtype, n * dim, 1);
        Array dweight = random_array(dtype, 9 * dim, 2);
        Doubles expected = dweight.values();
        for (int64_t i = 0; i < n * dim; ++i) {
          expected[ids[i / dim] * dim + i % dim] += dy[i];
        }
        kernels::embedding_backward(dtype, dtype, n, 9, dim, ids.data(), dy.data(), dweight.data());
        expect_close(dweight, expected, "dweight");
      }
    }
  });
}

// In the order of the rows, for tables of any size; of the largest nothing but 70,000 rows is
// there.
TEST(Embedding, BackwardAccumulatesInLargeTables) {
  for (const int64_t size : {int64_t{256}, int64_t{70'000}, int64_t{1} << 40}) {
    const int64_t vocab = std::min<int64_t>(size, 70'000);
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < 2000; ++i) {
      ids.push_back(i % 3 == 0 ? vocab - 1 - i % 5 : i * i * 131 % vocab);
    }
    const auto n = static_cast<int64_t>(ids.size());
    const Array dy = random_array(kFloat64, n, 1);
    Doubles expected(static_cast<size_t>(vocab), 0.0);
    Array dweight(kFloat64, expected);
    for (int64_t i = 0; i < n; ++i) {
      expected[ids[i]] += dy[i];
    }
    kernels::embedding_backward(kFloat64, kFloat64, n, size, 1, ids.data(), dy.data(),
                                dweight.data());
    for (int64_t row = 0; row < vocab; ++row) {
      ASSERT_EQ(dweight[row], expected[row]) << row;  // in the same order
    }
  }
}

TEST(Embedding, SmallTermsOfBfloat16AreNotLost) {
  // 256 + 1 is 256 in bfloat16; the 300 terms together are not.
  at_every_cpu_level([] {
    Array dweight(kBFloat16, Doubles{256});
    const Array dy(kBFloat16, Doubles(300, 1.0));
    const std::vector<int64_t> ids(300, 0);
    kernels::embedding_backward(kBFloat16, kBFloat16, 300, 1, 1, ids.data(), dy.data(),
                                dweight.data());
    EXPECT_EQ(dweight[0], 556);
  });
}

TEST(Embedding, RowsAndTableOfTwoDtypes) {
  at_every_cpu_level([] {
    for (const DType dtype : {kBFloat16, kFloat16}) {
      const std::vector<int64_t> ids = ids_of(50, 9);
      const Array weight = random_array(kFloat32, 9 * 70, 1);
      Array y(dtype, 50 * 70);
      kernels::embedding(kFloat32, dtype, 50, 70, weight.data(), ids.data(), y.data());
      const Array rounded(dtype, weight.values());
      const Array dy = random_array(dtype, 50 * 70, 2);
      Array dweight(kFloat32, Doubles(9 * 70, 1.0));
      Doubles expected = dweight.values();
      for (int64_t i = 0; i < 50 * 70; ++i) {
        const int64_t at = ids[i / 70] * 70 + i % 70;
        ASSERT_EQ(y[i], rounded[at]);
        expected[at] += dy[i];
      }
      kernels::embedding_backward(kFloat32, dtype, 50, 9, 70, ids.data(), dy.data(),
                                  dweight.data());
      expect_close(dweight, expected, "dweight");
    }
  });
}

TEST(Embedding, SameForAnyTeam) {
  at_every_cpu_level([] {
    expect_same_for_any_team([] {
      const std::vector<int64_t> ids = ids_of(2000, 31);
      const Array dy = random_array(kFloat32, 2000 * 75, 1);
      Array dweight(kFloat32, Doubles(31 * 75, 0.0));
      kernels::embedding_backward(kFloat32, kFloat32, 2000, 31, 75, ids.data(), dy.data(),
                                  dweight.data());
      return std::vector<Array>{dweight};
    });
  });
}

}  // namespace
}  // namespace tapestry::testing
