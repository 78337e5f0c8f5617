#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "autograd/kernels/elementwise/elementwise.h"
#include "tests/autograd/kernels/elementwise_testing.h"
#include "tests/cpu_levels.h"

namespace tapestry::kernels {
namespace {

double gelu_tanh(double x) { return x * sigmoid(2 * tanh_argument(x)); }

struct UnaryCase {
  const char* name;
  UnaryOp op;
  std::function<double(double)> exact;
  double floor;  // below this magnitude the error counts as absolute
};

/// Denormal results are exact to one denormal step, which at 1e-38 is 1e-7 relative.
constexpr double kDenormal = 1.2e-38;

const std::vector<UnaryCase>& unary_cases() {
  static const std::vector<UnaryCase> cases = {
      {"neg", UnaryOp::kNeg, [](double x) { return -x; }, 0},
      {"abs", UnaryOp::kAbs, [](double x) { return std::abs(x); }, 0},
      {"sign", UnaryOp::kSign, [](double x) { return x > 0 ? 1.0 : (x < 0 ? -1.0 : x); }, 0},
      {"floor", UnaryOp::kFloor, [](double x) { return std::floor(x); }, 0},
      {"ceil", UnaryOp::kCeil, [](double x) { return std::ceil(x); }, 0},
      {"round", UnaryOp::kRound, [](double x) { return std::nearbyint(x); }, 0},
      {"exp", UnaryOp::kExp, [](double x) { return std::exp(x); }, kDenormal},
      {"log", UnaryOp::kLog, [](double x) { return std::log(x); }, 0},
      {"sqrt", UnaryOp::kSqrt, [](double x) { return std::sqrt(x); }, 0},
      {"rsqrt", UnaryOp::kRsqrt, [](double x) { return 1 / std::sqrt(x); }, 0},
      {"reciprocal", UnaryOp::kReciprocal, [](double x) { return 1 / x; }, kDenormal},
      {"sin", UnaryOp::kSin, [](double x) { return std::sin(x); }, 0},
      {"cos", UnaryOp::kCos, [](double x) { return std::cos(x); }, 0},
      {"tanh", UnaryOp::kTanh, [](double x) { return std::tanh(x); }, 0},
      // e^-x overflows before the quotient does: 0 below -88.7
      {"sigmoid", UnaryOp::kSigmoid, sigmoid, 1e-29},
      {"erf", UnaryOp::kErf, [](double x) { return std::erf(x); }, kDenormal},
      {"square", UnaryOp::kSquare, [](double x) { return x * x; }, kDenormal},
      {"relu", UnaryOp::kRelu, [](double x) { return x <= 0 ? 0 : x; }, 0},
      {"gelu", UnaryOp::kGelu, [](double x) { return x * normal_cdf(x); }, 1e-29},
      {"gelu_tanh", UnaryOp::kGeluTanh, gelu_tanh, 0.17},  // the argument's rounding
      {"silu", UnaryOp::kSilu, [](double x) { return x / (1 + std::exp(-x)); }, 1e-29},
  };
  return cases;
}

TEST(ElementwiseTest, UnaryFloat32IsAccurateEverywhere) {
  const std::vector<double> samples = float_samples();
  const std::vector<char> x = array(kFloat32, samples);
  const auto n = static_cast<int64_t>(samples.size());
  std::vector<float> y(samples.size());
  at_every_cpu_level([&] {
    for (const UnaryCase& c : unary_cases()) {
      unary_row(c.op, kFloat32)(n, x.data(), 1, y.data(), 1);
      double worst = 0;
      int64_t where = 0;
      for (int64_t i = 0; i < n; ++i) {
        double exact = c.exact(samples[i]);
        const double d = distance(y[i], exact, c.floor);
        if (d > worst || std::isnan(d)) {
          worst = d;
          where = i;
        }
      }
      RecordProperty(std::string(c.name) + "_" + std::string(name_of(cpu_level())),
                     std::to_string(worst * 1e9) + "e-9");
      EXPECT_LT(worst, c.op == UnaryOp::kGelu ? 4e-7 : 3e-7)
          << c.name << "(" << samples[where] << ") = " << y[where] << ", exact "
          << c.exact(samples[where]);
    }
  });
}

TEST(ElementwiseTest, CornersAreExact) {
  at_every_cpu_level([] {
    const auto call = [](UnaryOp op, float x) {
      float y = 0;
      unary_row(op, kFloat32)(1, &x, 1, &y, 1);
      return y;
    };
    EXPECT_EQ(call(UnaryOp::kExp, -200), 0);
    EXPECT_EQ(call(UnaryOp::kExp, -kInf), 0);
    EXPECT_EQ(call(UnaryOp::kExp, 100), kInf);
    EXPECT_EQ(call(UnaryOp::kExp, 0), 1);
    EXPECT_EQ(call(UnaryOp::kLog, 0), -kInf);
    EXPECT_EQ(call(UnaryOp::kLog, 1), 0);
    EXPECT_EQ(call(UnaryOp::kLog, kInf), kInf);
    EXPECT_TRUE(std::isnan(call(UnaryOp::kLog, -1)));
    EXPECT_EQ(call(UnaryOp::kSqrt, 0), 0);
    EXPECT_EQ(call(UnaryOp::kRsqrt, 0), kInf);
    EXPECT_EQ(call(UnaryOp::kTanh, 50), 1);
    EXPECT_EQ(call(UnaryOp::kTanh, -kInf), -1);
    EXPECT_EQ(call(UnaryOp::kErf, kInf), 1);
    EXPECT_EQ(call(UnaryOp::kErf, -6), -1);
    EXPECT_EQ(call(UnaryOp::kSigmoid, 80), 1);
    EXPECT_NEAR(call(UnaryOp::kSigmoid, -80) / 1.8048513878454153e-35, 1, 3e-7);
    EXPECT_EQ(call(UnaryOp::kSigmoid, -kInf), 0);
    EXPECT_EQ(call(UnaryOp::kGelu, -1e30F), 0);
    EXPECT_EQ(call(UnaryOp::kGelu, 1e30F), 1e30F);
    EXPECT_EQ(call(UnaryOp::kGeluTanh, -1e30F), 0);
    EXPECT_EQ(call(UnaryOp::kGeluTanh, kInf), kInf);
    EXPECT_EQ(call(UnaryOp::kRound, 2.5F), 2);
    EXPECT_EQ(call(UnaryOp::kRound, -3.5F), -4);
  });
}

TEST(ElementwiseTest, UnaryFloat64FollowsLibm) {
  std::vector<double> x;
  for (int i = -3000; i <= 3000; ++i) {
    x.push_back(i * 0.0117);
  }
  x.insert(x.end(), {800.0, -800.0, 1e300, -1e300, 0.0});
  std::vector<double> y(x.size());
  at_every_cpu_level([&] {
    for (const UnaryCase& c : unary_cases()) {
      unary_row(c.op, kFloat64)(static_cast<int64_t>(x.size()), x.data(), 1, y.data(), 1);
      for (size_t i = 0; i < x.size(); ++i) {
        const double exact = c.exact(x[i]);
        ASSERT_TRUE(same(y[i], exact) ||
                    std::abs(y[i] - exact) <= 1e-12 * std::max(std::abs(exact), 1e-300))
            << c.name << "(" << x[i] << ") = " << y[i] << ", exact " << exact;
      }
    }
  });
}

/// Every dtype, n across chunk borders, positive, zero and negative strides.
TEST(ElementwiseTest, UnaryTakesAnyStrideAndLength) {
  at_every_cpu_level([] {
    for (const DType dtype : {kInt32, kInt64, kFloat16, kBFloat16, kFloat32, kFloat64}) {
      for (const UnaryOp op : {UnaryOp::kNeg, UnaryOp::kSquare, UnaryOp::kAbs, UnaryOp::kRelu}) {
        for (const int64_t n : {0, 1, 7, 8, 9, 511, 512, 513, 1030}) {
          for (const int64_t sx : {1, 0, 2, -1, -3}) {
            for (const int64_t sy : {1, 2, -1}) {
              std::vector<double> values(static_cast<size_t>(3 * n + 1));
              for (size_t i = 0; i < values.size(); ++i) {
                values[i] = static_cast<double>(i % 23) - 11;
              }
              const std::vector<char> x = array(dtype, values);
              std::vector<char> y = array(dtype, std::vector<double>(values.size(), 99));
              const int64_t x0 = sx < 0 ? -sx * std::max<int64_t>(0, n - 1) : 0;
              const int64_t y0 = sy < 0 ? -sy * std::max<int64_t>(0, n - 1) : 0;
              const int64_t item = size_of(dtype);
              unary_row(op, dtype)(n, x.data() + x0 * item, sx, y.data() + y0 * item, sy);
              std::vector<double> expected(values.size(), 99);
              for (int64_t i = 0; i < n; ++i) {
                const double v = values[x0 + i * sx];
                expected[y0 + i * sy] = op == UnaryOp::kNeg      ? -v
                                        : op == UnaryOp::kSquare ? v * v
                                        : op == UnaryOp::kAbs    ? std::abs(v)
                                                                 : std::max(v, 0.0);
              }
              for (size_t i = 0; i < values.size(); ++i) {
                ASSERT_EQ(get(dtype, y.data(), static_cast<int64_t>(i)), expected[i])
                    << name_of(dtype) << " op " << static_cast<int>(op) << " n " << n << " sx "
                    << sx << " sy " << sy << " at " << i;
              }
            }
          }
        }
      }
    }
  });
}

TEST(ElementwiseTest, SixteenBitResultsAreRoundedOnce) {
  std::vector<double> values;
  for (int i = -2000; i <= 2000; ++i) {
    values.push_back(i * 0.0051);
  }
  at_every_cpu_level([&] {
    for (const DType dtype : {kFloat16, kBFloat16}) {
      const std::vector<char> x = array(dtype, values);
      std::vector<char> y(x.size());
      std::vector<char> expected(x.size());
      for (const UnaryCase& c : unary_cases()) {
        const auto n = static_cast<int64_t>(values.size());
        unary_row(c.op, dtype)(n, x.data(), 1, y.data(), 1);
        int differing = 0;
        for (int64_t i = 0; i < n; ++i) {
          const double exact = c.exact(get(dtype, x.data(), i));
          set(dtype, expected.data(), i, exact);
          const double e = get(dtype, expected.data(), i);
          const double a = get(dtype, y.data(), i);
          differing += same(a, e) ? 0 : 1;
          // A float32 error may tip a tie, never more.
          const double step = dtype == kFloat16 ? 0x1p-10 : 0x1p-7;
          ASSERT_TRUE(same(a, e) || std::abs(a - e) <= step * std::abs(e) + 6e-8)
              << c.name << " " << name_of(dtype) << " " << a << " " << e;
        }
        EXPECT_LT(differing, n / 100) << c.name << " " << name_of(dtype);
      }
    }
  });
}

}  // namespace
}  // namespace tapestry::kernels
