// A block of float32 values as bfloat16 halves and the 16 bits that these leave over; and rounding
// to bfloat16 at random. optimizer.h has the contracts.
//
// Only for sources in kernels/isa/: everything here has internal linkage, per level.
#pragma once

#include <cstdint>

#include "autograd/kernels/isa/vector_math.h"
#include "autograd/kernels/machine/dtype.h"

namespace tapestry::kernels::TAPESTRY_ISA {
namespace {

inline constexpr uint32_t kSignBit = 0x80000000U;
inline constexpr uint32_t kTie = 0x8000U;  // low bits of a value half way between two bfloat16

[[gnu::always_inline]] inline bool is_nan_bits(uint32_t u) { return (u & ~kSignBit) > 0x7f800000U; }

/// Splits x; the signs of `marks` say which ties went up.
[[gnu::always_inline]] inline void split_block(
    int64_t n, const float* x, BFloat16* high, uint16_t* low, float* marks) {
  TAPESTRY_VECTOR_LOOP
  for (int64_t i = 0; i < n; ++i) {
    const auto u = __builtin_bit_cast(uint32_t, x[i]);
    const uint32_t upper = u >> 16U;
    const uint32_t rounded = (u + 0x7fffU + (upper & 1U)) >> 16U;
    const uint32_t h = is_nan_bits(u) ? upper | 0x40U : rounded;
    const uint32_t rest = u & 0xffffU;
    const auto mark = __builtin_bit_cast(uint32_t, marks[i]) & ~kSignBit;
    const uint32_t went_up = (rest == kTie ? 1U : 0U) & (h ^ upper);  // h is upper, or one more
    high[i].bits = static_cast<uint16_t>(h);
    low[i] = static_cast<uint16_t>(rest);
    marks[i] = __builtin_bit_cast(float, mark | (went_up != 0 ? kSignBit : 0U));
  }
}

/// Joins x; the signs of `marks` say which ties went up.
[[gnu::always_inline]] inline void join_block(
    int64_t n, const BFloat16* high, const uint16_t* low, const float* marks, float* x) {
  TAPESTRY_VECTOR_LOOP
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t whole = static_cast<uint32_t>(high[i].bits) << 16U;
    const uint32_t rest = low[i];
    const auto mark = __builtin_bit_cast(uint32_t, marks[i]);
    // Above the tie the half was rounded up; at the tie the mark says so.
    const bool up = rest > kTie || (rest == kTie && mark >= kSignBit);
    const uint32_t truncated = up && !is_nan_bits(whole) ? whole - 0x10000U : whole;
    x[i] = __builtin_bit_cast(float, truncated | rest);
  }
}

[[gnu::always_inline]] inline void clear_signs(int64_t n, float* x) {
  TAPESTRY_VECTOR_LOOP
  for (int64_t i = 0; i < n; ++i) {
    x[i] = __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, x[i]) & ~kSignBit);
  }
}

/// y = in, each rounded up with the probability of what it has beyond the bfloat16 below it. The
/// random 16 bits of an element are those of its word from `shift` on.
[[gnu::always_inline]] inline void store_stochastic(
    int64_t n, const float* in, const uint32_t* words, uint32_t shift, BFloat16* y) {
  TAPESTRY_VECTOR_LOOP
  for (int64_t i = 0; i < n; ++i) {
    const auto u = __builtin_bit_cast(uint32_t, in[i]);
    const uint32_t magnitude = u & ~kSignBit;
    const uint32_t moved = u + ((words[i] >> shift) & 0xffffU);
    const uint32_t kept = magnitude >= 0x7f7f0000U ? u : moved;  // never rounded to infinity
    const uint32_t quiet = magnitude > 0x7f800000U ? 0x40U : 0U;
    y[i].bits = static_cast<uint16_t>((kept >> 16U) | quiet);
  }
}

}  // namespace
}  // namespace tapestry::kernels::TAPESTRY_ISA
