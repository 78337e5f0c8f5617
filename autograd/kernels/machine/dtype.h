// Element types of tensors and the two 16-bit floating types that C++20 does not have.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

namespace tapestry {

/// bfloat16: the upper half of an IEEE binary32. Conversion rounds to nearest, ties to even; a NaN
/// stays a (quiet) NaN.
struct BFloat16 {
  uint16_t bits = 0;

  BFloat16() = default;
  [[gnu::always_inline]] explicit BFloat16(float value) {
    const auto u = std::bit_cast<uint32_t>(value);
    if ((u & 0x7fffffffU) > 0x7f800000U) {
      bits = static_cast<uint16_t>((u >> 16U) | 0x40U);
    } else {
      bits = static_cast<uint16_t>((u + 0x7fffU + ((u >> 16U) & 1U)) >> 16U);
    }
  }
  [[gnu::always_inline]] explicit operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16U);
  }
};

/// IEEE binary16. Conversion rounds to nearest, ties to even; overflow gives infinity, a NaN stays
/// a (quiet) NaN, subnormals are kept.
struct Float16 {
  uint16_t bits = 0;

  Float16() = default;
  explicit Float16(float value);
  explicit operator float() const;
};

[[gnu::always_inline]] inline Float16::Float16(float value) {
  const auto u = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((u >> 16U) & 0x8000U);
  const uint32_t magnitude = u & 0x7fffffffU;
  if (magnitude > 0x7f800000U) {
    bits = static_cast<uint16_t>(sign | 0x7e00U | ((magnitude >> 13U) & 0x3ffU));
  } else if (magnitude >= 0x47800000U) {  // 65536 and above: infinity
    bits = static_cast<uint16_t>(sign | 0x7c00U);
  } else if (magnitude >= 0x38800000U) {  // normal: rebias, round on the 13 dropped bits
    const uint32_t rebased = magnitude - 0x38000000U;
    bits = static_cast<uint16_t>(sign | ((rebased + 0xfffU + ((rebased >> 13U) & 1U)) >> 13U));
  } else {  // subnormal: adding 0.5 aligns the mantissa so that the FPU does the rounding
    const float aligned = std::bit_cast<float>(magnitude) + 0.5F;
    bits = static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(aligned) - 0x3f000000U));
  }
}

[[gnu::always_inline]] inline Float16::operator float() const {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000U) << 16U;
  const uint32_t exponent = (bits >> 10U) & 0x1fU;
  const uint32_t mantissa = bits & 0x3ffU;
  if (exponent == 0x1fU) {
    return std::bit_cast<float>(sign | 0x7f800000U | (mantissa << 13U));
  }
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24
    const float value = static_cast<float>(mantissa) * 0x1p-24F;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
  }
  return std::bit_cast<float>(sign | ((exponent + 112U) << 23U) | (mantissa << 13U));
}

/// Element type of a tensor. The values are stable: they may be stored.
enum class DType : uint8_t {
  kBool = 0,
  kInt32 = 1,
  kInt64 = 2,
  kFloat16 = 3,
  kBFloat16 = 4,
  kFloat32 = 5,
  kFloat64 = 6,
  kInt8 = 7,
  kUInt8 = 8,
};
inline constexpr int kNumDTypes = 9;

inline constexpr DType kBool = DType::kBool;
inline constexpr DType kInt8 = DType::kInt8;
inline constexpr DType kUInt8 = DType::kUInt8;
inline constexpr DType kInt32 = DType::kInt32;
inline constexpr DType kInt64 = DType::kInt64;
inline constexpr DType kFloat16 = DType::kFloat16;
inline constexpr DType kBFloat16 = DType::kBFloat16;
inline constexpr DType kFloat32 = DType::kFloat32;
inline constexpr DType kFloat64 = DType::kFloat64;

/// Bytes of one element.
constexpr int64_t size_of(DType dtype) {
  constexpr int64_t kSizes[kNumDTypes] = {1, 4, 8, 2, 2, 4, 8, 1, 1};
  return kSizes[static_cast<int>(dtype)];
}

/// The name that configuration files and messages use: "float32", "bfloat16", "int64", ...
constexpr std::string_view name_of(DType dtype) {
  constexpr std::string_view kNames[kNumDTypes] = {
      "bool", "int32", "int64", "float16", "bfloat16", "float32", "float64", "int8", "uint8"};
  return kNames[static_cast<int>(dtype)];
}

constexpr bool is_floating(DType dtype) { return dtype >= kFloat16 && dtype <= kFloat64; }
constexpr bool is_integral(DType dtype) { return !is_floating(dtype) && dtype != kBool; }
/// int32 and int64: what positions and counts are given in.
constexpr bool is_index(DType dtype) { return dtype == kInt32 || dtype == kInt64; }

/// DType of a C++ element type; dtype_of<float>() == kFloat32.
template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<bool>() {
  return kBool;
}
template <>
constexpr DType dtype_of<int8_t>() {
  return kInt8;
}
template <>
constexpr DType dtype_of<uint8_t>() {
  return kUInt8;
}
template <>
constexpr DType dtype_of<int32_t>() {
  return kInt32;
}
template <>
constexpr DType dtype_of<int64_t>() {
  return kInt64;
}
template <>
constexpr DType dtype_of<Float16>() {
  return kFloat16;
}
template <>
constexpr DType dtype_of<BFloat16>() {
  return kBFloat16;
}
template <>
constexpr DType dtype_of<float>() {
  return kFloat32;
}
template <>
constexpr DType dtype_of<double>() {
  return kFloat64;
}

}  // namespace tapestry
