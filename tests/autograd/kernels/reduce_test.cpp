#include "autograd/kernels/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/kernels/reference.h"
#include "tests/autograd/kernels/numbers.h"
#include "tests/cpu_levels.h"

namespace tapestry::kernels {
namespace {

const float kNan = std::nanf("");
constexpr float kInf = std::numeric_limits<float>::infinity();

struct Size {
  int64_t outer, n, inner;
};

const std::vector<Size>& sizes() {
  static const std::vector<Size> list = {{1, 1, 1},     {3, 7, 1},     {1, 1000, 1}, {5, 513, 1},
                                         {2, 6, 5},     {1, 300, 700}, {40, 9, 33},  {1, 100001, 1},
                                         {1, 20000, 3}, {0, 4, 2},     {2, 4, 0},    {2, 0, 3}};
  return list;
}

/// Small multiples of 1/4 (of 1 for integers, 0 or 1 for bool).
template <class T>
std::vector<T> values(int64_t count, int salt) {
  std::vector<T> x(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const auto v = static_cast<double>((i * 7919 + salt) % 37 - 16);
    x[i] = std::is_same_v<T, uint8_t> ? T(v > 8) : make<T>(std::is_integral_v<T> ? v : v * 0.25);
  }
  return x;
}

template <class T>
DType dtype() {
  if constexpr (std::is_same_v<T, uint8_t>) {
    return kBool;
  } else {
    return dtype_of<T>();
  }
}

/// Half a unit of T's last place, relative.
template <class T>
double rounding() {
  return std::is_same_v<T, BFloat16>  ? 0x1p-8
         : std::is_same_v<T, Float16> ? 0x1p-11
         : std::is_same_v<T, float>   ? 0x1p-24
                                      : 1e-13;
}

template <class T>
void check_reductions() {
  for (const Size s : sizes()) {
    const std::vector<T> x = values<T>(s.outer * s.n * s.inner, 3);
    const int64_t count = s.outer * s.inner;
    std::vector<T> y(static_cast<size_t>(count) + 1, make<T>(1));
    std::vector<double> exact(static_cast<size_t>(count) + 1);
    const auto compare = [&](ReduceOp op, double start, auto combine) {
      reduce(op, dtype<T>(), s.outer, s.n, s.inner, x.data(), y.data());
      const auto wide = [&](double a, T b) { return combine(a, number(b)); };
      reference::reduce(s.outer, s.n, s.inner, x.data(), start, wide, exact.data());
      for (int64_t i = 0; i < count; ++i) {
        double e = exact[i];
        if (std::is_same_v<T, uint8_t>) {
          e = e != 0 ? 1 : 0;
        }
        const double largest = std::is_same_v<T, Float16> ? 65504 : 1e300;
        if (std::abs(e) > largest) {
          ASSERT_TRUE(std::isinf(number(y[i])));
          continue;
        }
        ASSERT_LE(std::abs(number(y[i]) - e), rounding<T>() * std::abs(e))
            << name_of(dtype<T>()) << " op " << static_cast<int>(op) << " [" << s.outer << ", "
            << s.n << ", " << s.inner << "] at " << i;
      }
      ASSERT_EQ(number(y[count]), 1);
    };
    compare(ReduceOp::kSum, 0, [](double a, double b) { return a + b; });
    compare(ReduceOp::kSumSquares, 0, [](double a, double b) { return a + b * b; });
    if (s.n > 0 || count == 0) {
      compare(ReduceOp::kMax, -1e30, [](double a, double b) { return std::max(a, b); });
      compare(ReduceOp::kMin, 1e30, [](double a, double b) { return std::min(a, b); });
    }
    if (s.n < 10) {
      compare(ReduceOp::kProd, 1, [](double a, double b) { return a * b; });
    }
    std::vector<uint8_t> flags(static_cast<size_t>(count) + 1, 7);
    for (const bool any : {true, false}) {
      reduce_bool(any, dtype<T>(), s.outer, s.n, s.inner, x.data(),
                  reinterpret_cast<bool*>(flags.data()));
      const auto combine = [any](int a, T b) {
        return any ? (a | (number(b) != 0)) : (a & (number(b) != 0));
      };
      std::vector<int> expected(static_cast<size_t>(count) + 1);
      reference::reduce(s.outer, s.n, s.inner, x.data(), any ? 0 : 1, combine, expected.data());
      for (int64_t i = 0; i < count; ++i) {
        ASSERT_EQ(flags[i], expected[i]);
      }
      ASSERT_EQ(flags[count], 7);
    }
  }
}

TEST(ReduceTest, AgreesWithTheObviousLoop) {
  at_every_cpu_level([] {
    check_reductions<uint8_t>();
    check_reductions<int32_t>();
    check_reductions<int64_t>();
    check_reductions<Float16>();
    check_reductions<BFloat16>();
    check_reductions<float>();
    check_reductions<double>();
  });
}

TEST(ReduceTest, NanPassesExtremes) {
  at_every_cpu_level([] {
    for (const int64_t at : {0, 5, 700, 999}) {
      std::vector<float> x(1000, 1);
      x[at] = kNan;
      for (const int64_t inner : {1, 4}) {
        for (const ReduceOp op : {ReduceOp::kMax, ReduceOp::kMin}) {
          std::vector<float> y(4);
          reduce(op, kFloat32, 1, 1000 / inner, inner, x.data(), y.data());
          for (int64_t j = 0; j < inner; ++j) {
            EXPECT_EQ(std::isnan(y[j]), at % inner == j);
          }
        }
      }
    }
    const float infinities[] = {-kInf, -kInf};
    float y = 0;
    reduce(ReduceOp::kMax, kFloat32, 1, 2, 1, infinities, &y);
    EXPECT_EQ(y, -kInf);
  });
}

TEST(ReduceTest, LongFloatSumsKeepTheirDigitsForAnyTeam) {
  const int before = num_threads();
  at_every_cpu_level([&] {
    std::vector<float> x(3000000, 0.1F);
    double exact = 0;
    for (const float v : x) {
      exact += v;
    }
    std::vector<float> results;
    std::vector<double> squares;
    for (const int team : {1, 2, 3}) {
      set_num_threads(team);
      float y[3];
      reduce(ReduceOp::kSum, kFloat32, 1, 3000000, 1, x.data(), y);
      results.push_back(y[0]);
      reduce(ReduceOp::kSum, kFloat32, 1, 1000000, 3, x.data(), y);
      results.push_back(y[1] * 3);
      squares.push_back(sum_of_squares(kFloat32, 2999999, x.data()));
    }
    set_num_threads(before);
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_NEAR(results[i] / exact, 1, 1e-7);
      EXPECT_EQ(results[i], results[i % 2]);
      EXPECT_EQ(squares[i / 2], squares[0]);
    }
  });
}

TEST(ReduceTest, SumOfSquaresSpansTheRangeOfFloat) {
  at_every_cpu_level([] {
    const std::vector<float> huge(100, 3e38F);
    EXPECT_NEAR(sum_of_squares(kFloat32, 100, huge.data()) / 9e78, 1, 1e-6);
    const std::vector<float> tiny(100, 1e-30F);
    EXPECT_NEAR(sum_of_squares(kFloat32, 100, tiny.data()) / 1e-58, 1, 1e-6);
    const std::vector<int64_t> integers(3, int64_t{1} << 40);
    EXPECT_EQ(sum_of_squares(kInt64, 3, integers.data()), 3 * 0x1p80);
    EXPECT_EQ(sum_of_squares(kFloat32, 0, nullptr), 0);
  });
}

template <class T>
void check_arg_reduce() {
  for (const Size s : sizes()) {
    if (s.n == 0) {
      continue;
    }
    const std::vector<T> x = values<T>(s.outer * s.n * s.inner, 5);
    const int64_t count = s.outer * s.inner;
    std::vector<T> best(static_cast<size_t>(count));
    std::vector<int64_t> index(static_cast<size_t>(count));
    for (const bool max : {true, false}) {
      arg_reduce(max, dtype<T>(), s.outer, s.n, s.inner, x.data(), best.data(), index.data());
      for (int64_t o = 0; o < s.outer; ++o) {
        for (int64_t j = 0; j < s.inner; ++j) {
          int64_t expected = 0;
          const auto at = [&](int64_t i) { return number(x[(o * s.n + i) * s.inner + j]); };
          for (int64_t i = 1; i < s.n; ++i) {
            expected = (max ? at(i) > at(expected) : at(i) < at(expected)) ? i : expected;
          }
          ASSERT_EQ(index[o * s.inner + j], expected);
          ASSERT_EQ(number(best[o * s.inner + j]), at(expected));
        }
      }
    }
  }
}

TEST(ReduceTest, ArgReduceTakesTheFirstOfEquals) {
  check_arg_reduce<uint8_t>();
  check_arg_reduce<int32_t>();
  check_arg_reduce<int64_t>();
  check_arg_reduce<Float16>();
  check_arg_reduce<BFloat16>();
  check_arg_reduce<float>();
  check_arg_reduce<double>();
}

TEST(ReduceTest, ArgReduceLetsTheFirstNanWin) {
  const float x[] = {1, kNan, 5, kNan};
  float value = 0;
  int64_t index = -1;
  for (const bool max : {true, false}) {
    arg_reduce(max, kFloat32, 1, 4, 1, x, &value, &index);
    EXPECT_EQ(index, 1);
    EXPECT_TRUE(std::isnan(value));
  }
  arg_reduce(true, kFloat32, 1, 4, 1, x, nullptr, &index);
  EXPECT_EQ(index, 1);
  arg_reduce(true, kFloat32, 1, 1, 1, x, &value, nullptr);
  EXPECT_EQ(value, 1);
}

template <class T>
void check_cumsum() {
  for (const Size s :
       {Size{1, 1, 1}, Size{3, 50, 1}, Size{2, 40, 70}, Size{2, 0, 3}, Size{5, 3, 2}}) {
    const std::vector<T> x = values<T>(s.outer * s.n * s.inner, 1);
    for (const bool reverse : {false, true}) {
      std::vector<T> y = x;
      cumsum(dtype<T>(), s.outer, s.n, s.inner, y.data(), y.data(), reverse);
      for (int64_t o = 0; o < s.outer; ++o) {
        for (int64_t j = 0; j < s.inner; ++j) {
          double sum = 0;
          for (int64_t step = 0; step < s.n; ++step) {
            const int64_t i = reverse ? s.n - 1 - step : step;
            const int64_t at = (o * s.n + i) * s.inner + j;
            sum += number(x[at]);
            ASSERT_EQ(number(y[at]), number(make<T>(sum))) << name_of(dtype<T>());
          }
        }
      }
    }
  }
}

TEST(ReduceTest, CumsumRunsBothWaysInPlace) {
  check_cumsum<int32_t>();
  check_cumsum<int64_t>();
  check_cumsum<Float16>();
  check_cumsum<BFloat16>();
  check_cumsum<float>();
  check_cumsum<double>();
}

TEST(ReduceTest, AllFiniteFindsTheOneThatIsNot) {
  at_every_cpu_level([] {
    std::vector<float> x(70001, 3e38F);
    EXPECT_TRUE(all_finite(kFloat32, 70001, x.data()));
    EXPECT_TRUE(all_finite(kFloat32, 0, x.data()));
    for (const int64_t at : {0, 511, 512, 40000, 70000}) {
      for (const float bad : {kInf, -kInf, kNan}) {
        x[at] = bad;
        EXPECT_FALSE(all_finite(kFloat32, 70001, x.data()));
        x[at] = 1;
      }
    }
    std::vector<Float16> half(100);
    EXPECT_TRUE(all_finite(kFloat16, 100, half.data()));
    half[99] = Float16(70000.0F);
    EXPECT_FALSE(all_finite(kFloat16, 100, half.data()));
    const int64_t integer = -1;
    EXPECT_TRUE(all_finite(kInt64, 1, &integer));
  });
}

template <class T>
void check_updates() {
  for (const int64_t n : {0, 1, 511, 40001}) {
    const std::vector<T> x = values<T>(n, 2);
    std::vector<T> y = values<T>(n, 9);
    const std::vector<T> before = y;
    axpy(dtype<T>(), n, 0.5, x.data(), y.data());
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_EQ(number(y[i]), number(before[i]) + 0.5 * number(x[i]));
    }
    scale_inplace(dtype<T>(), n, -2, y.data());
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_EQ(number(y[i]), -2 * number(before[i]) - number(x[i]));
    }
  }
}

TEST(ReduceTest, ScalesAndAccumulatesInPlace) {
  at_every_cpu_level([] {
    check_updates<Float16>();
    check_updates<BFloat16>();
    check_updates<float>();
    check_updates<double>();
  });
}

}  // namespace
}  // namespace tapestry::kernels
