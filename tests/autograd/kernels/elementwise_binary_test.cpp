#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "autograd/kernels/elementwise/elementwise.h"
#include "tests/autograd/kernels/elementwise_testing.h"
#include "tests/cpu_levels.h"

namespace tapestry::kernels {
namespace {

double phi(double x) { return std::exp(-0.5 * x * x) / std::sqrt(2 * M_PI); }
double gelu_tanh_derivative(double x) {
  const double s = sigmoid(2 * tanh_argument(x));
  const double complement = sigmoid(-2 * tanh_argument(x));
  const double slope = std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
  return s + (complement == 0 || s == 0 ? 0 : 2 * x * s * complement * slope);
}
double silu_derivative(double x) {
  return std::abs(x) > 700 ? (x > 0 ? 1 : 0) : sigmoid(x) * (1 + x * sigmoid(-x));
}
double gelu_derivative(double x) {
  return std::isinf(x) ? (x > 0 ? 1 : 0) : normal_cdf(x) + x * phi(x);
}

struct BinaryCase {
  const char* name;
  BinaryOp op;
  std::function<double(double, double)> exact;
};

double maximum(double a, double b) {
  return std::isnan(a) || std::isnan(b) ? std::nan("") : std::max(a, b);
}
double minimum(double a, double b) {
  return std::isnan(a) || std::isnan(b) ? std::nan("") : std::min(a, b);
}

const std::vector<BinaryCase>& binary_cases() {
  static const std::vector<BinaryCase> cases = {
      {"add", BinaryOp::kAdd, [](double a, double b) { return a + b; }},
      {"sub", BinaryOp::kSub, [](double a, double b) { return a - b; }},
      {"mul", BinaryOp::kMul, [](double a, double b) { return a * b; }},
      {"div", BinaryOp::kDiv, [](double a, double b) { return a / b; }},
      {"pow", BinaryOp::kPow, [](double a, double b) { return std::pow(a, b); }},
      {"maximum", BinaryOp::kMaximum, maximum},
      {"minimum", BinaryOp::kMinimum, minimum},
      {"relu", BinaryOp::kReluBackward, [](double x, double dy) { return x <= 0 ? 0 : dy; }},
      {"gelu", BinaryOp::kGeluBackward,
       [](double x, double dy) { return dy * gelu_derivative(x); }},
      {"gelu_tanh", BinaryOp::kGeluTanhBackward,
       [](double x, double dy) { return dy * gelu_tanh_derivative(x); }},
      {"silu", BinaryOp::kSiluBackward,
       [](double x, double dy) { return dy * silu_derivative(x); }},
      {"tanh", BinaryOp::kTanhBackward, [](double y, double dy) { return dy * (1 - y * y); }},
      {"sigmoid", BinaryOp::kSigmoidBackward, [](double y, double dy) { return dy * y * (1 - y); }},
      {"and", BinaryOp::kLogicalAnd, [](double a, double b) { return a != 0 && b != 0; }},
      {"or", BinaryOp::kLogicalOr, [](double a, double b) { return a != 0 || b != 0; }},
      {"xor", BinaryOp::kLogicalXor, [](double a, double b) { return (a != 0) != (b != 0); }},
      {"eq", BinaryOp::kEq, [](double a, double b) { return a == b; }},
      {"ne", BinaryOp::kNe, [](double a, double b) { return a != b; }},
      {"lt", BinaryOp::kLt, [](double a, double b) { return a < b; }},
      {"le", BinaryOp::kLe, [](double a, double b) { return a <= b; }},
      {"gt", BinaryOp::kGt, [](double a, double b) { return a > b; }},
      {"ge", BinaryOp::kGe, [](double a, double b) { return a >= b; }},
  };
  return cases;
}

double tolerance(DType dtype, double exact) {
  switch (dtype) {
    case kFloat16:
      return 0x1p-10 * std::abs(exact) + 6e-8;
    case kBFloat16:
      return 0x1p-7 * std::abs(exact);
    case kFloat32:
      return 3e-7 * std::max(std::abs(exact), 0.5);
    case kFloat64:
      return 1e-14 * std::max(std::abs(exact), 0.5);
    default:
      return 0;
  }
}

TEST(ElementwiseTest, BinaryTakesEveryDTypeAndStride) {
  at_every_cpu_level([] {
    for (const BinaryCase& c : binary_cases()) {
      for (const DType dtype : kAllDTypes) {
        const BinaryRow row = binary_row(c.op, dtype);
        if (row == nullptr) {
          continue;
        }
        const DType out = gives_bool(c.op) ? kBool : dtype;
        for (const int64_t n : {0, 1, 9, 513, 1100}) {
          for (const auto& [sa, sb, sy] : std::vector<std::array<int64_t, 3>>{{1, 1, 1},
                                                                              {0, 1, 1},
                                                                              {1, 0, 1},
                                                                              {0, 0, 1},
                                                                              {2, 1, 1},
                                                                              {1, 3, 2},
                                                                              {0, 2, 3},
                                                                              {2, 0, 1}}) {
            const std::vector<double> av = small_values(dtype, 3 * n + 1, 1);
            const std::vector<double> bv = small_values(dtype, 3 * n + 1, 5);
            const std::vector<char> a = array(dtype, av);
            const std::vector<char> b = array(dtype, bv);
            std::vector<char> y =
                array(out, std::vector<double>(static_cast<size_t>(3 * n + 1), 1));
            row(n, a.data(), sa, b.data(), sb, y.data(), sy);
            for (int64_t i = 0; i < n; ++i) {
              double exact = c.exact(av[i * sa], bv[i * sb]);
              if (dtype == kBool && !gives_bool(c.op)) {
                exact = exact != 0 ? 1 : 0;
              }
              if (is_integral(dtype) && c.op == BinaryOp::kPow) {
                exact = std::isinf(exact) ? 0 : std::trunc(exact);
              }
              exact = wrapped(out, exact);
              const double actual = get(out, y.data(), i * sy);
              ASSERT_TRUE(same(actual, exact) || std::abs(actual - exact) <= tolerance(out, exact))
                  << c.name << " " << name_of(dtype) << " n " << n << " strides " << sa << sb << sy
                  << " at " << i << ": " << av[i * sa] << ", " << bv[i * sb] << " gave " << actual
                  << ", expected " << exact;
            }
          }
        }
      }
    }
  });
}

TEST(ElementwiseTest, DerivativesAreAccurateAndFiniteEverywhere) {
  std::vector<double> samples = float_samples();
  for (const double v : {1e19, 1e30, 3e38}) {
    samples.push_back(static_cast<float>(v));
    samples.push_back(static_cast<float>(-v));
  }
  const std::vector<char> x = array(kFloat32, samples);
  const float one = 1;
  std::vector<float> y(samples.size());
  at_every_cpu_level([&] {
    for (const BinaryCase& c : binary_cases()) {
      if (c.op != BinaryOp::kGeluBackward && c.op != BinaryOp::kGeluTanhBackward &&
          c.op != BinaryOp::kSiluBackward) {
        continue;
      }
      binary_row(c.op, kFloat32)(static_cast<int64_t>(samples.size()), x.data(), 1, &one, 0,
                                 y.data(), 1);
      double worst = 0;
      for (size_t i = 0; i < samples.size(); ++i) {
        const double v = samples[i];
        const double exact =
            std::isnan(v) ? v : (std::abs(v) > 1e4 ? (v > 0 ? 1 : 0) : c.exact(v, 1));
        const double d = distance(y[i], exact, 1);
        ASSERT_LT(d, 4e-7) << c.name << "(" << v << ") = " << y[i] << ", exact " << exact;
        worst = std::max(worst, d);
      }
      RecordProperty(std::string(c.name) + "_backward_" + std::string(name_of(cpu_level())),
                     std::to_string(worst * 1e9) + "e-9");
    }
  });
}

TEST(ElementwiseTest, NanPassesMaximumAndMinimumFromEitherSide) {
  at_every_cpu_level([] {
    const float a[] = {kNan, 1, kNan, 2};
    const float b[] = {1, kNan, kNan, 3};
    float y[4];
    binary_row(BinaryOp::kMaximum, kFloat32)(4, a, 1, b, 1, y, 1);
    EXPECT_TRUE(std::isnan(y[0]) && std::isnan(y[1]) && std::isnan(y[2]));
    EXPECT_EQ(y[3], 3);
    binary_row(BinaryOp::kMinimum, kFloat32)(4, a, 1, b, 1, y, 1);
    EXPECT_TRUE(std::isnan(y[0]) && std::isnan(y[1]) && std::isnan(y[2]));
    EXPECT_EQ(y[3], 2);
    uint8_t flags[4];
    binary_row(BinaryOp::kEq, kFloat32)(4, a, 1, a, 1, flags, 1);
    EXPECT_EQ(flags[0], 0);
    EXPECT_EQ(flags[1], 1);
    unary_row(UnaryOp::kIsNan, kFloat32)(4, a, 1, flags, 1);
    EXPECT_EQ(flags[0], 1);
    EXPECT_EQ(flags[1], 0);
    const float mixed[] = {kInf, -kInf, kNan, 3e38F};
    unary_row(UnaryOp::kIsFinite, kFloat32)(4, mixed, 1, flags, 1);
    EXPECT_EQ(std::vector<int>(flags, flags + 4), (std::vector<int>{0, 0, 0, 1}));
    float clamped[4];
    scalar_row(ScalarOp::kClampMin, kFloat32)(4, mixed, 1, 0.5, clamped, 1);
    EXPECT_EQ(clamped[0], kInf);
    EXPECT_EQ(clamped[1], 0.5F);
    EXPECT_TRUE(std::isnan(clamped[2]));
  });
}

TEST(ElementwiseTest, IntegersWrap) {
  at_every_cpu_level([] {
    const int64_t big = std::numeric_limits<int64_t>::max();
    const int64_t one = 1;
    int64_t y = 0;
    binary_row(BinaryOp::kAdd, kInt64)(1, &big, 1, &one, 1, &y, 1);
    EXPECT_EQ(y, std::numeric_limits<int64_t>::min());
    unary_row(UnaryOp::kAbs, kInt64)(1, &y, 1, &y, 1);
    EXPECT_EQ(y, std::numeric_limits<int64_t>::min());
    const int64_t three = 3;
    scalar_row(ScalarOp::kPow, kInt64)(1, &three, 1, 39, &y, 1);
    EXPECT_EQ(y, 4052555153018976267);
    int8_t small = 100;
    scalar_row(ScalarOp::kAdd, kInt8)(1, &small, 1, 300, &small, 1);
    EXPECT_EQ(small, -112);
    small = -128;
    unary_row(UnaryOp::kNeg, kInt8)(1, &small, 1, &small, 1);
    EXPECT_EQ(small, -128);
    uint8_t byte = 200;
    binary_row(BinaryOp::kMul, kUInt8)(1, &byte, 1, &byte, 1, &byte, 1);
    EXPECT_EQ(byte, 64);
    scalar_row(ScalarOp::kClampMin, kUInt8)(1, &byte, 1, 300, &byte, 1);
    EXPECT_EQ(byte, 255);
    scalar_row(ScalarOp::kLt, kUInt8)(1, &byte, 1, 300, &byte, 1);
    EXPECT_EQ(byte, 1);
  });
}

TEST(ElementwiseTest, WhatHasNoMeaningHasNoRow) {
  EXPECT_EQ(unary_row(UnaryOp::kExp, kInt64), nullptr);
  EXPECT_EQ(unary_row(UnaryOp::kNeg, kBool), nullptr);
  EXPECT_EQ(binary_row(BinaryOp::kDiv, kInt32), nullptr);
  EXPECT_EQ(binary_row(BinaryOp::kSub, kBool), nullptr);
  EXPECT_EQ(binary_row(BinaryOp::kGeluBackward, kInt64), nullptr);
  EXPECT_EQ(scalar_row(ScalarOp::kDiv, kInt64), nullptr);
  EXPECT_EQ(scalar_row(ScalarOp::kAdd, kBool), nullptr);
  for (const DType dtype : kAllDTypes) {
    EXPECT_NE(unary_row(UnaryOp::kIsFinite, dtype), nullptr);
    EXPECT_NE(binary_row(BinaryOp::kEq, dtype), nullptr);
    EXPECT_NE(scalar_row(ScalarOp::kGe, dtype), nullptr);
    EXPECT_NE(where_row(dtype), nullptr);
  }
}

struct ScalarCase {
  const char* name;
  ScalarOp op;
  std::function<double(double, double)> exact;
};

TEST(ElementwiseTest, ScalarTakesEveryDType) {
  const std::vector<ScalarCase> cases = {
      {"add", ScalarOp::kAdd, [](double x, double s) { return x + s; }},
      {"sub", ScalarOp::kSub, [](double x, double s) { return x - s; }},
      {"rsub", ScalarOp::kRsub, [](double x, double s) { return s - x; }},
      {"mul", ScalarOp::kMul, [](double x, double s) { return x * s; }},
      {"div", ScalarOp::kDiv, [](double x, double s) { return x / s; }},
      {"rdiv", ScalarOp::kRdiv, [](double x, double s) { return s / x; }},
      {"pow", ScalarOp::kPow, [](double x, double s) { return std::pow(x, s); }},
      {"rpow", ScalarOp::kRpow, [](double x, double s) { return std::pow(s, x); }},
      {"clamp_min", ScalarOp::kClampMin, [](double x, double s) { return std::max(x, s); }},
      {"clamp_max", ScalarOp::kClampMax, [](double x, double s) { return std::min(x, s); }},
      {"eq", ScalarOp::kEq, [](double x, double s) { return x == s; }},
      {"ne", ScalarOp::kNe, [](double x, double s) { return x != s; }},
      {"lt", ScalarOp::kLt, [](double x, double s) { return x < s; }},
      {"le", ScalarOp::kLe, [](double x, double s) { return x <= s; }},
      {"gt", ScalarOp::kGt, [](double x, double s) { return x > s; }},
      {"ge", ScalarOp::kGe, [](double x, double s) { return x >= s; }},
  };
  at_every_cpu_level([&] {
    for (const ScalarCase& c : cases) {
      for (const DType dtype : kAllDTypes) {
        const ScalarRow row = scalar_row(c.op, dtype);
        if (row == nullptr) {
          continue;
        }
        const bool relation = c.op >= ScalarOp::kEq;
        const DType out = relation ? kBool : dtype;
        std::vector<double> scalars = {0, 1, 2, 3, -1, 5};
        if (is_floating(dtype)) {
          scalars.insert(scalars.end(), {0.5, -0.5, 1.75});
        }
        for (const double s : scalars) {
          for (const auto& [sx, sy] : std::vector<std::array<int64_t, 2>>{{1, 1}, {2, 1}, {1, 3}}) {
            const int64_t n = 700;
            std::vector<double> xv = small_values(dtype, 3 * n, 2);
            const std::vector<char> x = array(dtype, xv);
            std::vector<char> y(static_cast<size_t>(3 * n * size_of(out)));
            row(n, x.data(), sx, s, y.data(), sy);
            for (int64_t i = 0; i < n; ++i) {
              double exact = c.exact(xv[i * sx], s);
              if (is_integral(dtype) && !relation) {
                exact = std::isinf(exact) ? 0 : std::trunc(exact);
              }
              const bool limits = c.op == ScalarOp::kClampMin || c.op == ScalarOp::kClampMax;
              exact = limits && dtype == kUInt8 ? std::max(exact, 0.0) : wrapped(out, exact);
              const double actual = get(out, y.data(), i * sy);
              ASSERT_TRUE(same(actual, exact) || std::abs(actual - exact) <= tolerance(out, exact))
                  << c.name << " " << name_of(dtype) << " x " << xv[i * sx] << " s " << s
                  << " gave " << actual << ", expected " << exact;
            }
          }
        }
      }
    }
  });
}

TEST(ElementwiseTest, OutputMayBeTheInput) {
  at_every_cpu_level([] {
    for (const DType dtype : {kFloat16, kBFloat16, kFloat32, kFloat64}) {
      std::vector<double> values = small_values(dtype, 1500, 1);
      std::vector<char> x = array(dtype, values);
      binary_row(BinaryOp::kAdd, dtype)(1500, x.data(), 1, x.data(), 1, x.data(), 1);
      scalar_row(ScalarOp::kMul, dtype)(1500, x.data(), 1, 2, x.data(), 1);
      unary_row(UnaryOp::kNeg, dtype)(1500, x.data(), 1, x.data(), 1);
      for (int64_t i = 0; i < 1500; ++i) {
        ASSERT_EQ(get(dtype, x.data(), i), -4 * values[i]);
      }
    }
  });
}

}  // namespace
}  // namespace tapestry::kernels
