// The exponential for fused loops, written without branches so that it becomes vector code.
// Only for sources in kernels/isa/: everything here has internal linkage, per level.
#pragma once

#include <cstdint>

// Marks a loop whose iterations are independent (outputs may be exactly inputs).
#if defined(_OPENMP)
#define TAPESTRY_VECTOR_LOOP _Pragma("omp simd")
#elif defined(__clang__)
#define TAPESTRY_VECTOR_LOOP _Pragma("clang loop vectorize(enable)")
#else
#define TAPESTRY_VECTOR_LOOP _Pragma("GCC ivdep")
#endif

namespace tapestry::kernels::TAPESTRY_ISA {
namespace {

[[gnu::always_inline]] inline float multiply_add(float a, float b, float c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

/// e^x = 2^n e^r with |r| <= ln(2) / 2 and e^r = 1 + r + r^2 q(r); q is the minimax polynomial of
/// that weight (Remez exchange; its own error is 3e-9). Relative error below 2e-7; NaN, infinities
/// and overflow as in IEEE 754, and results below 2^-126 are denormal.
[[gnu::always_inline]] inline float fast_exp(float x) {
  constexpr float kRounder = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  float c = x > 89.0F ? 89.0F : x;         // a comparison with NaN is false: it passes through
  c = c < -105.0F ? -105.0F : c;
  const float shifted = multiply_add(c, 1.44269504F, kRounder);
  const float n = shifted - kRounder;
  // ln 2 = 0.693359375 - 2.1219444e-4; n times the first part is exact.
  const float r = multiply_add(n, 2.12194440e-4F, multiply_add(n, -0.693359375F, c));
  float q = multiply_add(1.381432057e-03F, r, 8.368851066e-03F);
  q = multiply_add(q, r, 4.166840108e-02F);
  q = multiply_add(q, r, 1.666651952e-01F);
  q = multiply_add(q, r, 4.999999337e-01F);
  const float p = 1.0F + multiply_add(r * r, q, r);
  // 2^n as two factors: by itself it may be out of range where the result is not.
  const auto exponent = static_cast<int32_t>(__builtin_bit_cast(uint32_t, shifted) -
                                             __builtin_bit_cast(uint32_t, kRounder));
  const int32_t half = exponent >> 1;
  const auto bits1 = static_cast<uint32_t>(half + 127) << 23U;
  const auto bits2 = (static_cast<uint32_t>(exponent) - half + 127U) << 23U;
  return p * __builtin_bit_cast(float, bits1) * __builtin_bit_cast(float, bits2);
}

[[gnu::always_inline]] inline double fast_exp(double x) { return __builtin_exp(x); }

}  // namespace
}  // namespace tapestry::kernels::TAPESTRY_ISA
