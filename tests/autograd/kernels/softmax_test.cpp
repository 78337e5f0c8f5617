#include "autograd/kernels/softmax.h"

#include <limits>

#include "fused_testing.h"

namespace tapestry::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct SoftmaxSizes {
  int64_t outer;
  int64_t n;
  int64_t inner;
};
constexpr SoftmaxSizes kSoftmaxSizes[] = {{0, 3, 1},    {2, 0, 1}, {1, 1, 1},   {3, 7, 1},
                                          {2, 1025, 1}, {2, 5, 3}, {1, 3, 600}, {2, 0, 3}};

struct Expected {
  Doubles softmax;
  Doubles log_softmax;
  Doubles logsumexp;  // [outer, inner]
};

Expected reference(const SoftmaxSizes& s, const Array& x) {
  Expected out{Doubles(x.size()), Doubles(x.size()), Doubles(s.outer * s.inner)};
  for (int64_t o = 0; o < s.outer; ++o) {
    for (int64_t j = 0; j < s.inner; ++j) {
      const auto at = [&](int64_t i) { return (o * s.n + i) * s.inner + j; };
      double max = -kInfinity;
      for (int64_t i = 0; i < s.n; ++i) {
        max = std::max(max, x[at(i)]);
      }
      double sum = 0;
      for (int64_t i = 0; i < s.n; ++i) {
        sum += std::exp(x[at(i)] - max);
      }
      for (int64_t i = 0; i < s.n; ++i) {
        out.softmax[at(i)] = std::exp(x[at(i)] - max) / sum;
        out.log_softmax[at(i)] = x[at(i)] - max - std::log(sum);
      }
      out.logsumexp[o * s.inner + j] = std::isinf(max) ? max : max + std::log(sum);
    }
  }
  return out;
}

void expect_forward(const SoftmaxSizes& s, const Array& x) {
  const Expected expected = reference(s, x);
  Array y(x.dtype(), x.size());
  kernels::softmax(x.dtype(), s.outer, s.n, s.inner, x.data(), y.data());
  expect_close(y, expected.softmax, "softmax");
  kernels::log_softmax(x.dtype(), s.outer, s.n, s.inner, x.data(), y.data());
  expect_close(y, expected.log_softmax, "log_softmax");
  Array sums(x.dtype(), s.outer * s.inner);
  kernels::logsumexp(x.dtype(), s.outer, s.n, s.inner, x.data(), sums.data());
  expect_close(sums, expected.logsumexp, "logsumexp");
}

TEST(Softmax, MatchesLoops) {
  for_each_dtype([](DType dtype) {
    for (const SoftmaxSizes& s : kSoftmaxSizes) {
      SCOPED_TRACE(s.n * 1000 + s.inner);
      expect_forward(s, random_array(dtype, s.outer * s.n * s.inner, 1, 3));
    }
  });
}

TEST(Softmax, HugeArguments) {
  for_each_dtype([](DType dtype) {
    Doubles values;
    for (int i = 0; i < 40; ++i) {
      values.push_back(i % 2 == 0 ? 1000.0 : -1000.0);
      values.push_back(999.0 - i);
    }
    expect_forward({1, 80, 1}, Array(dtype, values));
    expect_forward({1, 20, 4}, Array(dtype, values));
    expect_forward({2, 40, 1}, Array(dtype, Doubles(80, -1000.0)));
  });
}

TEST(Softmax, InfinitiesAndNan) {
  for_each_dtype([](DType dtype) {
    // Rows: some -inf; all -inf; +inf; NaN. As rows, and as columns of the transposed array.
    const Doubles rows = {1, -kInfinity, 2, -kInfinity, -kInfinity, -kInfinity,
                          1, kInfinity,  0, NAN,        1,          2};
    Doubles columns(12);
    for (int64_t r = 0; r < 4; ++r) {
      for (int64_t c = 0; c < 3; ++c) {
        columns[c * 4 + r] = rows[r * 3 + c];
      }
    }
    for (const bool transposed : {false, true}) {
      const SoftmaxSizes s = transposed ? SoftmaxSizes{1, 3, 4} : SoftmaxSizes{4, 3, 1};
      const auto at = [&](int64_t r, int64_t c) { return transposed ? c * 4 + r : r * 3 + c; };
      const Array x(dtype, transposed ? columns : rows);
      Array y(dtype, 12);
      kernels::softmax(dtype, s.outer, s.n, s.inner, x.data(), y.data());
      EXPECT_EQ(y[at(0, 1)], 0);
      EXPECT_NEAR(y[at(0, 2)], 1 / (1 + std::exp(-1)), tolerance(dtype));
      for (int64_t r = 1; r < 4; ++r) {
        EXPECT_TRUE(std::isnan(y[at(r, 1)])) << r;
      }
      Array sums(dtype, 4);
      kernels::logsumexp(dtype, s.outer, s.n, s.inner, x.data(), sums.data());
      EXPECT_EQ(sums[1], -kInfinity);
      EXPECT_EQ(sums[2], kInfinity);
      EXPECT_TRUE(std::isnan(sums[3]));
    }
  });
}

TEST(Softmax, BackwardMatchesLoops) {
  for_each_dtype([](DType dtype) {
    for (const SoftmaxSizes& s : kSoftmaxSizes) {
      const int64_t size = s.outer * s.n * s.inner;
      const Array x = random_array(dtype, size, 2);
      const Array dy = random_array(dtype, size, 3);
      Array y(dtype, size);
      Array dx(dtype, size);
      for (const bool logarithm : {false, true}) {
        (logarithm ? kernels::log_softmax : kernels::softmax)(dtype, s.outer, s.n, s.inner,
                                                              x.data(), y.data());
        (logarithm ? kernels::log_softmax_backward : kernels::softmax_backward)(
            dtype, s.outer, s.n, s.inner, y.data(), dy.data(), dx.data());
        Doubles expected(size);
        for (int64_t o = 0; o < s.outer; ++o) {
          for (int64_t j = 0; j < s.inner; ++j) {
            const auto at = [&](int64_t i) { return (o * s.n + i) * s.inner + j; };
            double sum = 0;
            for (int64_t i = 0; i < s.n; ++i) {
              sum += logarithm ? dy[at(i)] : y[at(i)] * dy[at(i)];
            }
            for (int64_t i = 0; i < s.n; ++i) {
              expected[at(i)] =
                  logarithm ? dy[at(i)] - std::exp(y[at(i)]) * sum : y[at(i)] * (dy[at(i)] - sum);
            }
          }
        }
        expect_close(dx, expected, logarithm ? "log_softmax_backward" : "softmax_backward");
      }
    }
  });
}

TEST(Softmax, InPlace) {
  for_each_dtype([](DType dtype) {
    for (const SoftmaxSizes& s : {SoftmaxSizes{2, 1025, 1}, SoftmaxSizes{2, 5, 700}}) {
      const Array x = random_array(dtype, s.outer * s.n * s.inner, 4);
      Array expected(dtype, x.size());
      Array y = x;
      kernels::softmax(dtype, s.outer, s.n, s.inner, x.data(), expected.data());
      kernels::softmax(dtype, s.outer, s.n, s.inner, y.data(), y.data());
      EXPECT_TRUE(y.same_bits(expected));
    }
  });
}

TEST(Softmax, SameForAnyTeam) {
  at_every_cpu_level([] {
    expect_same_for_any_team([] {
      std::vector<Array> out;
      for (const SoftmaxSizes& s : {SoftmaxSizes{203, 331, 1}, SoftmaxSizes{7, 9, 1111}}) {
        const Array x = random_array(kFloat32, s.outer * s.n * s.inner, 5);
        const Array dy = random_array(kFloat32, x.size(), 6);
        Array y(kFloat32, x.size());
        Array dx(kFloat32, x.size());
        kernels::softmax(kFloat32, s.outer, s.n, s.inner, x.data(), y.data());
        kernels::softmax_backward(kFloat32, s.outer, s.n, s.inner, y.data(), dy.data(), dx.data());
        out.push_back(y);
        out.push_back(dx);
      }
      return out;
    });
  });
}

}  // namespace
}  // namespace tapestry::testing
