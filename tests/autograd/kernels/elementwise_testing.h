// Arrays of any dtype, samples and error measures of the element-wise kernels' tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "autograd/kernels/machine/dtype.h"

namespace tapestry::kernels {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr DType kAllDTypes[] = {kBool,    kInt8,     kUInt8,   kInt32,  kInt64,
                                       kFloat16, kBFloat16, kFloat32, kFloat64};

/// Element i of an array of any dtype, as double.
inline double get(DType dtype, const void* data, int64_t i) {
  switch (dtype) {
    case kBool:
      return static_cast<const uint8_t*>(data)[i];
    case kInt8:
      return static_cast<const int8_t*>(data)[i];
    case kUInt8:
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

inline void set(DType dtype, void* data, int64_t i, double value) {
  switch (dtype) {
    case kBool:
      static_cast<uint8_t*>(data)[i] = value != 0 ? 1 : 0;
      break;
    case kInt8:
      static_cast<int8_t*>(data)[i] = static_cast<int8_t>(value);
      break;
    case kUInt8:
      static_cast<uint8_t*>(data)[i] = static_cast<uint8_t>(value);
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

inline std::vector<char> array(DType dtype, const std::vector<double>& values) {
  std::vector<char> data(values.size() * static_cast<size_t>(size_of(dtype)));
  for (size_t i = 0; i < values.size(); ++i) {
    set(dtype, data.data(), static_cast<int64_t>(i), values[i]);
  }
  return data;
}

inline bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

/// What int8 and uint8 keep of an integer; other dtypes keep it whole.
inline double wrapped(DType dtype, double whole) {
  const auto low =
      static_cast<uint8_t>(static_cast<int64_t>(dtype == kInt8 || dtype == kUInt8 ? whole : 0));
  return dtype == kUInt8 ? low : (dtype == kInt8 ? static_cast<int8_t>(low) : whole);
}

/// Distance in units of the larger of |exact| and `floor`; equal infinities and NaNs are 0 apart.
inline double distance(double actual, double exact, double floor) {
  if (same(actual, exact) || same(actual, static_cast<double>(static_cast<float>(exact)))) {
    return 0;
  }
  return std::abs(actual - exact) / std::max(std::abs(exact), floor);
}

/// A dense grid near zero, every magnitude, both signs, and the corners.
inline std::vector<double> float_samples() {
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

/// Values that every dtype holds, so that only the result is rounded.
inline std::vector<double> small_values(DType dtype, int64_t count, int salt) {
  std::vector<double> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    double v = static_cast<double>((i * 7 + salt) % 17) - 8;
    if (size_of(dtype) == 1) {
      v = static_cast<double>((i * 7 + salt) % 5) - (dtype == kUInt8 ? 0 : 2);
    }
    values[i] = dtype == kBool ? (v > 0 ? 1 : 0) : (is_floating(dtype) ? v * 0.375 : v);
  }
  return values;
}

/// What the formulas of gelu, silu and their derivatives share.
inline double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }
inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
inline double tanh_argument(double x) { return std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x); }

}  // namespace tapestry::kernels
