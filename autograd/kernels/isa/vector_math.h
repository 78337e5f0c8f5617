// Elementary functions of one float or double, written without branches so that loops over them
// become vector code at every instruction-set level.
//
// float: the polynomials are minimax fits (Remez exchange) on the stated intervals; the total
// errors stand in elementwise.h; infinities, NaN, overflow and gradual underflow as in IEEE 754.
// double: libm, which the loops call element by element.
// Only for sources in kernels/isa/: everything here has internal linkage, per level.
#pragma once

#include <cstdint>

#include "autograd/kernels/machine/dtype.h"

#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed"  // loops that call libm stay scalar
#endif

// Marks a loop whose iterations are independent (outputs may be exactly inputs). Its bound is a
// value: of one that is a call GCC's thread sanitizer makes a loop that takes no such mark.
#if defined(_OPENMP)
#define TAPESTRY_VECTOR_LOOP _Pragma("omp simd")
#elif defined(__clang__)
#define TAPESTRY_VECTOR_LOOP _Pragma("clang loop vectorize(enable)")
#else
#define TAPESTRY_VECTOR_LOOP _Pragma("GCC ivdep")
#endif

#define TAPESTRY_INLINE [[gnu::always_inline]] inline

namespace tapestry::kernels::TAPESTRY_ISA {
namespace {

inline constexpr float kInf = __builtin_inff();

TAPESTRY_INLINE uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
TAPESTRY_INLINE float float_of(uint32_t u) { return __builtin_bit_cast(float, u); }

/// a b + c, fused where the processor can: in software a fused one would cost a hundred times more.
TAPESTRY_INLINE float multiply_add(float a, float b, float c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

TAPESTRY_INLINE double multiply_add(double a, double b, double c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return __builtin_fma(a, b, c);
#else
  return a * b + c;
#endif
}

/// a^2 - s, s = a * a rounded: the rounding error of the square (Dekker's product without FMA).
TAPESTRY_INLINE float square_error(float a, float s) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return __builtin_fmaf(a, a, -s);
#else
  const float high = float_of(bits_of(a) & 0xfffff000U);
  const float low = a - high;
  return ((high * high - s) + 2 * high * low) + low * low;
#endif
}

/// sum_i c_i x^i
template <class... C>
TAPESTRY_INLINE float polynomial(float x, float c0, C... rest) {
  if constexpr (sizeof...(rest) == 0) {
    return c0;
  } else {
    return multiply_add(polynomial(x, rest...), x, c0);
  }
}

/// NaN stays NaN.
TAPESTRY_INLINE float clamp(float x, float low, float high) {
  const float c = x > high ? high : x;  // one choice after the other: two instructions as a vector
  return c < low ? low : c;
}
TAPESTRY_INLINE double clamp(double x, double low, double high) {
  const double c = x > high ? high : x;  // one choice after the other: two instructions as a vector
  return c < low ? low : c;
}

// ln 2 in two parts; the first has few bits, so that its products with exponents are exact.
inline constexpr float kLn2High = 0.693359375F;
inline constexpr float kLn2Low = -2.12194440e-4F;

/// e^r = 1 + r + r^2 q(r), |r| <= ln(2) / 2.
TAPESTRY_INLINE float exp_of_fraction(float r) {
  const float q = polynomial(r, 5.000000097e-01F, 1.666651712e-01F, 4.166620042e-02F,
                             8.369096263e-03F, 1.395085003e-03F);
  return 1.0F + multiply_add(r * r, q, r);
}

/// The same with terms in pairs, for who has to wait for it; rounded in other places.
TAPESTRY_INLINE float exp_of_fraction_in_pairs(float r) {
  const float r2 = r * r;
  const float q = polynomial(r2, polynomial(r, 5.000000097e-01F, 1.666651712e-01F),
                             polynomial(r, 4.166620042e-02F, 8.369096263e-03F), 1.395085003e-03F);
  return 1.0F + multiply_add(r2, q, r);
}

/// e^x = 2^n e^r with r = x - n ln 2. Relative error below 2e-7; NaN, infinities and overflow as in
/// IEEE 754, and results below 2^-126 are denormal.
TAPESTRY_INLINE float exp(float x) {
  constexpr float kShift = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  const float c = clamp(x, -105.0F, 89.0F);
  const float shifted = multiply_add(c, 1.44269504F, kShift);
  const float n = shifted - kShift;
  const float p = exp_of_fraction(multiply_add(n, -kLn2Low, multiply_add(n, -kLn2High, c)));
  // In two factors, since 2^n itself may be out of range where the result is not.
  const auto exponent = static_cast<int32_t>(bits_of(shifted) - bits_of(kShift));
  const int32_t half = exponent >> 1;
  const float scale1 = float_of(static_cast<uint32_t>(half + 127) << 23U);
  const float scale2 = float_of((static_cast<uint32_t>(exponent) - half + 127U) << 23U);
  return p * scale1 * scale2;
}

/// log x = n log 2 + log(1 + f), 1 + f in [sqrt(1/2), sqrt(2)); log(1 + f) = f - f^2/2 + f^3 P(f).
TAPESTRY_INLINE float log(float x) {
  constexpr uint32_t kSqrtHalf = 0x3f3504f3U;
  const bool denormal = x < 0x1p-126F;
  const uint32_t u = bits_of(denormal ? x * 0x1p23F : x) - kSqrtHalf;
  const float n = static_cast<float>(static_cast<int32_t>(u) >> 23) - (denormal ? 23.0F : 0.0F);
  const float f = float_of((u & 0x7fffffU) + kSqrtHalf) - 1.0F;
  const float p =
      polynomial(f, 3.333333171e-01F, -2.500082103e-01F, 2.000122689e-01F, -1.662335741e-01F,
                 1.420175781e-01F, -1.316018161e-01F, 1.276157812e-01F, -7.634500001e-02F);
  const float f2 = f * f;
  const float tail = multiply_add(f2, -0.5F, multiply_add(f * f2, p, n * kLn2Low));
  const float y = multiply_add(n, kLn2High, f + tail);
  const float finite = x > 0 ? y : (x == 0 ? -kInf : __builtin_nanf(""));
  return x == kInf ? kInf : finite;
}

TAPESTRY_INLINE float sigmoid(float x) { return 1.0F / (1.0F + exp(-x)); }

/// x + x^3 P(x^2) below 0.625, else 1 - 2 / (e^2x + 1).
TAPESTRY_INLINE float tanh(float x) {
  const float a = __builtin_fabsf(x);
  const float x2 = x * x;
  const float p = polynomial(x2, -3.333328393e-01F, 1.333149129e-01F, -5.374349815e-02F,
                             2.065058750e-02F, -5.717045264e-03F);
  const float small = multiply_add(x * x2, p, x);
  const float large = __builtin_copysignf(1.0F - 2.0F / (exp(2 * a) + 1.0F), x);
  return a < 0.625F ? small : large;
}

/// At most 20, where e^(-a^2/2) is 0 already: for a >= 0, also NaN, which becomes 20.
TAPESTRY_INLINE float normal_argument(float a) {
  // A choice among floats would become one for everything that follows from it, three instructions
  // each; the smaller of two integers is one instruction.
  constexpr int32_t kLimit = 0x41a00000;  // 20
  const auto bits = static_cast<int32_t>(bits_of(a));
  const int32_t smaller = bits < kLimit ? bits : kLimit;
  return float_of(static_cast<uint32_t>(smaller));
}

/// Phi(-a) = e^(-a^2/2) t Q(t), t = 1 / (1 + 0.3 a), for a >= 0; *gaussian = e^(-a^2/2), which is 0
/// where it would be below 2^-126. The error is relative, so that products with the tail lose
/// nothing. NaN stays NaN in the tail alone.
TAPESTRY_INLINE float normal_tail(float a, float* gaussian) {
  constexpr float kShift = 12582912.0F + 127.0F;  // rounds as in exp(), and biases the exponent
  const float c = normal_argument(a);
  const float s = c * c;
  const float shifted = multiply_add(s, -0.72134752F, kShift);
  const float n = shifted - kShift;
  const float rounded = multiply_add(n, -kLn2Low, multiply_add(n, -kLn2High, -0.5F * s));
  const float r = multiply_add(square_error(c, s), -0.5F, rounded);
  const auto exponent = static_cast<int32_t>(bits_of(shifted) - bits_of(12582912.0F));
  const float scale = float_of(static_cast<uint32_t>(exponent > 0 ? exponent : 0) << 23U);
  *gaussian = exp_of_fraction_in_pairs(r) * scale;
  // Terms in pairs and pairs of pairs: one after the other they would wait longer than they
  // compute.
  const float t = 1.0F / multiply_add(a, 0.3F, 1.0F);
  const float t2 = t * t;
  const float q = polynomial(t2 * t2,
                             polynomial(t2, polynomial(t, 1.196867166e-01F, 1.195713182e-01F),
                                        polynomial(t, 1.102393399e-01F, 7.837226047e-02F)),
                             polynomial(t2, polynomial(t, 9.620480204e-02F, -7.950892224e-02F),
                                        polynomial(t, 1.918829879e-01F, -2.282845540e-01F)),
                             polynomial(t, 1.124646916e-01F, -2.062864223e-02F));
  return *gaussian * t * q;
}

/// x P(x^2) below 1, else 1 - 2 Phi(-sqrt(2) x).
TAPESTRY_INLINE float erf(float x) {
  const float a = __builtin_fabsf(x);
  const float p =
      polynomial(x * x, 1.128379166e+00F, -3.761262582e-01F, 1.128358515e-01F, -2.685381194e-02F,
                 5.188327688e-03F, -8.010193651e-04F, 7.853861461e-05F);
  float unused = 0;
  const float tail = normal_tail(a * 1.41421356F, &unused);
  return a < 1.0F ? x * p : __builtin_copysignf(1.0F - 2.0F * tail, x);
}

/// Phi(x); *gaussian = e^(-x^2/2). What 1 - Phi(-x) loses near 0 is half of the tail's own error.
TAPESTRY_INLINE float normal_cdf(float x, float* gaussian) {
  const float a = __builtin_fabsf(x);
  const float tail = normal_tail(a, gaussian);
  return x < 0 ? tail : 1.0F - tail;
}

TAPESTRY_INLINE float gelu(float x) {
  float unused = 0;
  return x * normal_cdf(x, &unused);
}

/// Phi(x) + x phi(x), constant beyond 20.
TAPESTRY_INLINE float gelu_derivative_of(float x, float cdf, float gaussian) {
  const float c = __builtin_copysignf(normal_argument(__builtin_fabsf(x)), x);
  return multiply_add(c * 0.398942280F, gaussian, cdf);
}
TAPESTRY_INLINE float gelu_derivative(float x) {
  float gaussian = 0;
  const float cdf = normal_cdf(x, &gaussian);
  return gelu_derivative_of(x, cdf, gaussian);
}

/// Phi(x) for bfloat16, whose rounding is a thousand times coarser: within 2e-6 relative for |x| <
/// 5, 8e-6 beyond, in half the operations.
TAPESTRY_INLINE float rough_normal_cdf(float x, float* gaussian) {
  constexpr float kShift = 12582912.0F + 127.0F;
  const float a = __builtin_fabsf(x);
  const float c = normal_argument(a);
  const float power = -0.5F * (c * c);
  const float shifted = multiply_add(power, 1.44269504F, kShift);
  const float r = multiply_add(shifted - kShift, -0.69314718F, power);
  const float q =
      polynomial(r, 4.999923170e-01F, 1.666711479e-01F, 4.189015180e-02F, 8.312480152e-03F);
  const auto exponent = static_cast<int32_t>(bits_of(shifted) - bits_of(12582912.0F));
  const float scale = float_of(static_cast<uint32_t>(exponent > 0 ? exponent : 0) << 23U);
  *gaussian = (1.0F + multiply_add(r * r, q, r)) * scale;
  const float t = 1.0F / multiply_add(a, 0.2F, 1.0F);
  const float tail =
      *gaussian * t *
      polynomial(t * t, polynomial(t, 8.035014053e-02F, 7.109270669e-02F),
                 polynomial(t, 1.325344177e-01F, -1.231799507e-01F),
                 polynomial(t, 4.469310748e-01F, -3.868204492e-01F), 2.790926851e-01F);
  return x < 0 ? tail : 1.0F - tail;
}

TAPESTRY_INLINE float rough_gelu(float x) {
  float unused = 0;
  return x * rough_normal_cdf(x, &unused);
}

TAPESTRY_INLINE float rough_gelu_derivative(float x) {
  float gaussian = 0;
  const float cdf = rough_normal_cdf(x, &gaussian);
  return gelu_derivative_of(x, cdf, gaussian);
}

TAPESTRY_INLINE float sqrt(float x) { return __builtin_sqrtf(x); }
TAPESTRY_INLINE float floor(float x) { return __builtin_floorf(x); }
TAPESTRY_INLINE float ceil(float x) { return __builtin_ceilf(x); }
TAPESTRY_INLINE float rint(float x) { return __builtin_rintf(x); }
TAPESTRY_INLINE float fabs(float x) { return __builtin_fabsf(x); }
TAPESTRY_INLINE float sin(float x) { return __builtin_sinf(x); }  // libm reduces any argument
TAPESTRY_INLINE float cos(float x) { return __builtin_cosf(x); }
TAPESTRY_INLINE float pow(float x, float y) { return __builtin_powf(x, y); }

TAPESTRY_INLINE double exp(double x) { return __builtin_exp(x); }
TAPESTRY_INLINE double log(double x) { return __builtin_log(x); }
TAPESTRY_INLINE double sigmoid(double x) { return 1.0 / (1.0 + __builtin_exp(-x)); }
TAPESTRY_INLINE double tanh(double x) { return __builtin_tanh(x); }
TAPESTRY_INLINE double erf(double x) { return __builtin_erf(x); }
TAPESTRY_INLINE double normal_cdf(double x) {
  return 0.5 * __builtin_erfc(x * -0.70710678118654752);
}
TAPESTRY_INLINE double gelu(double x) { return x * normal_cdf(x); }
TAPESTRY_INLINE double gelu_derivative(double x) {
  const double c = clamp(x, -40.0, 40.0);
  return normal_cdf(c) + c * 0.39894228040143268 * __builtin_exp(-0.5 * c * c);
}
TAPESTRY_INLINE double sqrt(double x) { return __builtin_sqrt(x); }
TAPESTRY_INLINE double floor(double x) { return __builtin_floor(x); }
TAPESTRY_INLINE double ceil(double x) { return __builtin_ceil(x); }
TAPESTRY_INLINE double rint(double x) { return __builtin_rint(x); }
TAPESTRY_INLINE double fabs(double x) { return __builtin_fabs(x); }
TAPESTRY_INLINE double sin(double x) { return __builtin_sin(x); }
TAPESTRY_INLINE double cos(double x) { return __builtin_cos(x); }
TAPESTRY_INLINE double pow(double x, double y) { return __builtin_pow(x, y); }

/// x sigmoid(x)
template <class T>
TAPESTRY_INLINE T silu(T x) {
  return x / (T(1) + exp(-x));
}

/// With e = e^-x and s = 1 / (1 + e), the derivative is s (1 + x e s). Constant beyond the
/// limit, where e would overflow.
template <class T>
TAPESTRY_INLINE T silu_derivative(T x) {
  constexpr T kLimit = sizeof(T) == 8 ? T(700) : T(87);
  const T c = clamp(x, -kLimit, kLimit);
  const T e = exp(-c);
  const T s = T(1) / (T(1) + e);
  return s * (T(1) + c * (e * s));
}

template <class T>
inline constexpr T kTwiceSqrt2OverPi = T(1.5957691216057307);

/// x (1 + tanh(u)) / 2 = x sigmoid(2 u): without the cancellation of 1 + tanh.
template <class T>
TAPESTRY_INLINE T gelu_tanh(T x) {
  const T u2 = kTwiceSqrt2OverPi<T> * (x * (T(1) + T(0.044715) * (x * x)));
  return x / (T(1) + exp(-u2));
}

/// s + x s (1 - s) 2u', s = sigmoid(2 u); constant beyond the limit, where s (1 - s) is below
/// 1e-36.
template <class T>
TAPESTRY_INLINE T gelu_tanh_derivative(T x) {
  constexpr T kLimit = sizeof(T) == 8 ? T(20) : T(9.9);
  const T c = clamp(x, -kLimit, kLimit);
  const T x2 = c * c;
  const T u2 = kTwiceSqrt2OverPi<T> * (c * (T(1) + T(0.044715) * x2));
  const T slope = kTwiceSqrt2OverPi<T> * (T(1) + T(3 * 0.044715) * x2);
  const T e = exp(-u2);
  const T s = T(1) / (T(1) + e);
  return s * (T(1) + c * slope * (e * s));
}

/// What computes elements stored as T: the function F, or its member type ForBFloat16.
template <class F, class T>
struct FunctionFor {
  using type = F;
};
template <class F>
requires requires { typename F::ForBFloat16; }
struct FunctionFor<F, BFloat16> {
  using type = typename F::ForBFloat16;
};
template <class F, class T>
using function_for = typename FunctionFor<F, T>::type;

}  // namespace
}  // namespace tapestry::kernels::TAPESTRY_ISA
