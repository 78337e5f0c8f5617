#include "autograd/kernels/elementwise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/autograd/kernels/cpu_levels.h"

namespace tapestry::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::nanf("");
constexpr DType kAllDTypes[] = {kBool, kInt32, kInt64, kFloat16, kBFloat16, kFloat32, kFloat64};

/// Element i of an array of any dtype, as double.
double get(DType dtype, const void* data, int64_t i) {
  switch (dtype) {
    case kBool:
      return static_cast<const uint8_t*>(data)[i];
    case kInt32:
      return static_cast<const int32_t*>(data)[i];
    case kInt64:
      return static_cast<double>(static_cast<const int64_t*>(data)[i]);
    case kFloat16:
      return static_cast<float>(static_cast<const Float16*>(data)[i]);
    case kBFloat16:
      return static_cast<float>(static_cast<const BFloat16*>(data)[i]);
    case kFloat32:
      return static_cast<const float*>(data)[i];
    case kFloat64:
      return static_cast<const double*>(data)[i];
  }
  return 0;
}

void set(DType dtype, void* data, int64_t i, double value) {
  switch (dtype) {
    case kBool:
      static_cast<uint8_t*>(data)[i] = value != 0 ? 1 : 0;
      break;
    case kInt32:
      static_cast<int32_t*>(data)[i] = static_cast<int32_t>(value);
      break;
    case kInt64:
      static_cast<int64_t*>(data)[i] = static_cast<int64_t>(value);
      break;
    case kFloat16:
      static_cast<Float16*>(data)[i] = Float16(static_cast<float>(value));
      break;
    case kBFloat16:
      static_cast<BFloat16*>(data)[i] = BFloat16(static_cast<float>(value));
      break;
    case kFloat32:
      static_cast<float*>(data)[i] = static_cast<float>(value);
      break;
    case kFloat64:
      static_cast<double*>(data)[i] = value;
      break;
  }
}

std::vector<char> array(DType dtype, const std::vector<double>& values) {
  std::vector<char> data(values.size() * static_cast<size_t>(size_of(dtype)));
  for (size_t i = 0; i < values.size(); ++i) {
    set(dtype, data.data(), static_cast<int64_t>(i), values[i]);
  }
  return data;
}

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

/// Distance in units of the larger of |exact| and `floor`; equal infinities and NaNs are 0 apart.
double distance(double actual, double exact, double floor) {
  if (same(actual, exact) || same(actual, static_cast<double>(static_cast<float>(exact)))) {
    return 0;
  }
  return std::abs(actual - exact) / std::max(std::abs(exact), floor);
}

double phi(double x) { return std::exp(-0.5 * x * x) / std::sqrt(2 * M_PI); }
double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double tanh_argument(double x) { return std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x); }
double gelu_tanh(double x) { return x * sigmoid(2 * tanh_argument(x)); }
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

/// A dense grid near zero, every magnitude, both signs, and the corners.
std::vector<double> float_samples() {
  std::vector<double> x;
  for (int i = -40000; i <= 40000; ++i) {
    x.push_back(static_cast<float>(i * 0.0029F));
  }
  std::mt19937 random(7);
  for (int i = 0; i < 100000; ++i) {
    const auto bits = static_cast<uint32_t>(random());
    float value = 0;
    std::memcpy(&value, &bits, sizeof value);
    x.push_back(std::isnan(value) ? kNan : value);
  }
  for (const float v :
       {0.0F,   0.5F,   1.5F,   2.5F,       50.0F,       80.0F,           88.72F,     88.73F,
        100.0F, 103.9F, 104.0F, 200.0F,     1e-45F,      1.17549435e-38F, 3.4e38F,    kInf,
        kNan,   1.0F,   0.625F, 1.0000001F, 0.99999994F, 0.70710678F,     1.41421356F}) {
    x.push_back(v);
    x.push_back(-v);
  }
  return x;
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

bool gives_bool(BinaryOp op) { return op >= BinaryOp::kLogicalAnd; }

/// Values that every dtype holds, so that only the result is rounded.
std::vector<double> small_values(DType dtype, int64_t count, int salt) {
  std::vector<double> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const double v = static_cast<double>((i * 7 + salt) % 17) - 8;
    values[i] = dtype == kBool ? (v > 0 ? 1 : 0) : (is_floating(dtype) ? v * 0.375 : v);
  }
  return values;
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
        const double exact = std::isnan(v) ? v : (std::abs(v) > 1e4 ? (v > 0) : c.exact(v, 1));
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

TEST(ElementwiseTest, WhereSelectsBitPatterns) {
  at_every_cpu_level([] {
    for (const DType dtype : kAllDTypes) {
      for (const auto& [sc, sa, sb, sy] : std::vector<std::array<int64_t, 4>>{
               {1, 1, 1, 1}, {1, 0, 1, 1}, {1, 1, 0, 1}, {0, 1, 1, 1}, {2, 1, 3, 2}}) {
        const int64_t n = 133;
        const std::vector<double> cv = small_values(kBool, 3 * n, 3);
        const std::vector<double> av = small_values(dtype, 3 * n, 4);
        const std::vector<double> bv = small_values(dtype, 3 * n, 9);
        const std::vector<char> cond = array(kBool, cv);
        const std::vector<char> a = array(dtype, av);
        const std::vector<char> b = array(dtype, bv);
        std::vector<char> y(a.size());
        where_row(dtype)(n, cond.data(), sc, a.data(), sa, b.data(), sb, y.data(), sy);
        for (int64_t i = 0; i < n; ++i) {
          ASSERT_EQ(get(dtype, y.data(), i * sy), cv[i * sc] != 0 ? av[i * sa] : bv[i * sb]);
        }
      }
    }
  });
}

TEST(ElementwiseTest, CastsBetweenAllPairs) {
  at_every_cpu_level([] {
    for (const DType from : kAllDTypes) {
      for (const DType to : kAllDTypes) {
        for (const auto& [sx, sy] :
             std::vector<std::array<int64_t, 2>>{{1, 1}, {0, 1}, {2, 1}, {1, 3}}) {
          const int64_t n = 530;
          std::vector<double> values = small_values(from, 3 * n, 6);
          const std::vector<char> x = array(from, values);
          std::vector<char> y(static_cast<size_t>(3 * n * size_of(to)));
          cast_row(from, to)(n, x.data(), sx, y.data(), sy);
          for (int64_t i = 0; i < n; ++i) {
            double exact = values[i * sx];
            exact = to == kBool ? exact != 0 : (is_integral(to) ? std::trunc(exact) : exact);
            ASSERT_EQ(get(to, y.data(), i * sy), exact) << name_of(from) << " to " << name_of(to);
          }
        }
      }
    }
  });
}

TEST(ElementwiseTest, CastsTo16BitsRoundOnceToNearestEven) {
  at_every_cpu_level([] {
    // Every float16 and bfloat16 survives the way through float32; every midpoint goes to even.
    for (const DType dtype : {kFloat16, kBFloat16}) {
      std::vector<uint16_t> all(65536);
      for (size_t i = 0; i < all.size(); ++i) {
        all[i] = static_cast<uint16_t>(i);
      }
      std::vector<float> wide(all.size());
      std::vector<uint16_t> back(all.size());
      cast_row(dtype, kFloat32)(65536, all.data(), 1, wide.data(), 1);
      cast_row(kFloat32, dtype)(65536, wide.data(), 1, back.data(), 1);
      for (size_t i = 0; i < all.size(); ++i) {
        if (std::isnan(wide[i])) {
          ASSERT_TRUE(std::isnan(get(dtype, back.data(), static_cast<int64_t>(i))));
          continue;
        }
        ASSERT_EQ(back[i], all[i]);
        ASSERT_EQ(wide[i], get(dtype, all.data(), static_cast<int64_t>(i)));
      }
      for (int i = 0; i < 0x7b00; ++i) {
        const double low = get(dtype, all.data(), i);
        const double high = get(dtype, all.data(), i + 1);
        const double middle = (low + high) / 2;
        const double above = std::nextafter(middle, 1e300);
        const double inputs[3] = {middle, above, std::nextafter(middle, 0)};
        uint16_t out[3];
        cast_row(kFloat64, dtype)(3, inputs, 1, out, 1);
        ASSERT_EQ(out[0], (i & 1) != 0 ? i + 1 : i) << middle;
        ASSERT_EQ(out[1], i + 1) << middle;  // would be i for even i if first rounded to float32
        ASSERT_EQ(out[2], i) << middle;
      }
    }
    const float edges[] = {65519.9F, 65520, -70000, 1e-8F, kInf, 3.4e38F};
    Float16 half[6];
    cast_row(kFloat32, kFloat16)(6, edges, 1, half, 1);
    EXPECT_EQ(static_cast<float>(half[0]), 65504);
    EXPECT_EQ(static_cast<float>(half[1]), kInf);
    EXPECT_EQ(static_cast<float>(half[2]), -kInf);
    EXPECT_EQ(static_cast<float>(half[3]), 0);
    BFloat16 brain[6];
    cast_row(kFloat32, kBFloat16)(6, edges, 1, brain, 1);
    EXPECT_EQ(static_cast<float>(brain[4]), kInf);
    EXPECT_EQ(static_cast<float>(brain[5]), kInf);
  });
}

TEST(ElementwiseTest, FillWritesOnlyItsElements) {
  at_every_cpu_level([] {
    for (const DType dtype : kAllDTypes) {
      for (const int64_t n : {0, 1, 17}) {
        std::vector<char> y = array(dtype, std::vector<double>(40, 0));
        fill_row(dtype, n, 1, y.data(), 2);
        for (int64_t i = 0; i < 40; ++i) {
          ASSERT_EQ(get(dtype, y.data(), i), i % 2 == 0 && i / 2 < n ? 1 : 0) << name_of(dtype);
        }
      }
    }
    float value = 0;
    fill_row(kFloat32, 1, -std::numeric_limits<double>::infinity(), &value, 1);
    EXPECT_EQ(value, -kInf);
    int64_t integer = 0;
    fill_row(kInt64, 1, 1e30, &integer, 1);
    EXPECT_EQ(integer, std::numeric_limits<int64_t>::max());
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
