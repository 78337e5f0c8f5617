#include "autograd/kernels/sort.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "tests/autograd/kernels/numbers.h"

namespace tapestry::kernels {
namespace {

template <class T>
void check(DType dtype, int modulus) {
  for (const auto& [rows, n] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 3}, {2, 0}, {1, 1}, {3, 17}, {2, 1000}, {300, 40}}) {
    std::vector<T> x(static_cast<size_t>(rows * n));
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = make<T>(static_cast<int>(i * 7919 % 1009) % modulus);
    }
    for (const bool descending : {false, true}) {
      std::vector<T> values(x.size());
      std::vector<int64_t> indices(x.size());
      sort_rows(dtype, rows, n, x.data(), descending, values.data(), indices.data());
      std::vector<int64_t> expected(static_cast<size_t>(n));
      for (int64_t r = 0; r < rows; ++r) {
        std::iota(expected.begin(), expected.end(), 0);
        std::stable_sort(expected.begin(), expected.end(), [&, n = n](int64_t a, int64_t b) {
          const double left = number(x[r * n + a]);
          const double right = number(x[r * n + b]);
          return descending ? left > right : left < right;
        });
        for (int64_t i = 0; i < n; ++i) {
          ASSERT_EQ(indices[r * n + i], expected[i]);
          ASSERT_EQ(number(values[r * n + i]), number(x[r * n + expected[i]]));
        }
        for (const int64_t k : {int64_t{0}, int64_t{1}, n / 3, n}) {
          if (k > n) {
            continue;
          }
          std::vector<T> top(static_cast<size_t>(k));
          std::vector<int64_t> where(static_cast<size_t>(k));
          topk_rows(dtype, 1, n, k, descending, x.data() + r * n, top.data(), where.data());
          for (int64_t i = 0; i < k; ++i) {
            ASSERT_EQ(where[i], expected[i]);
            ASSERT_EQ(number(top[i]), number(x[r * n + expected[i]]));
          }
        }
      }
      std::vector<T> in_place = x;
      sort_rows(dtype, rows, n, in_place.data(), descending, in_place.data(), nullptr);
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_EQ(number(in_place[i]), number(values[i]));
      }
    }
  }
}

TEST(SortTest, SortsStablyEveryDType) {
  check<uint8_t>(kBool, 2);
  check<int32_t>(kInt32, 50);
  check<int64_t>(kInt64, 1000);
  check<Float16>(kFloat16, 60);
  check<BFloat16>(kBFloat16, 60);
  check<float>(kFloat32, 300);
  check<double>(kFloat64, 1009);
}

TEST(SortTest, NanIsTheLargest) {
  const float nan = std::nanf("");
  const float x[] = {nan, 2, -1, nan, HUGE_VALF};
  float values[5];
  int64_t indices[5];
  sort_rows(kFloat32, 1, 5, x, /*descending=*/false, values, indices);
  EXPECT_EQ(std::vector<int64_t>(indices, indices + 5), (std::vector<int64_t>{2, 1, 4, 0, 3}));
  EXPECT_TRUE(std::isnan(values[3]) && std::isnan(values[4]));
  sort_rows(kFloat32, 1, 5, x, /*descending=*/true, values, indices);
  EXPECT_EQ(std::vector<int64_t>(indices, indices + 5), (std::vector<int64_t>{0, 3, 4, 1, 2}));
  topk_rows(kFloat32, 1, 5, 2, /*largest=*/false, x, values, indices);
  EXPECT_EQ(values[0], -1);
  EXPECT_EQ(values[1], 2);
}

TEST(SortTest, TopkOfSeveralRowsIsDense) {
  const int64_t x[] = {3, 9, 5, 9, 1, 0, 7, 7};
  int64_t values[4];
  int64_t indices[4];
  topk_rows(kInt64, 2, 4, 2, /*largest=*/true, x, values, indices);
  EXPECT_EQ(std::vector<int64_t>(values, values + 4), (std::vector<int64_t>{9, 9, 7, 7}));
  EXPECT_EQ(std::vector<int64_t>(indices, indices + 4), (std::vector<int64_t>{1, 3, 2, 3}));
}

}  // namespace
}  // namespace tapestry::kernels
