// Elementary functions of vectors of 16 float32 by what AVX-512 has for them, and rows of float32
// or bfloat16 read and written 32 elements at a time. What there is of the same in vector_math.h
// and row_io.h, element by element, serves all levels; this is for loops that compute more than
// they move.
//
//   - 2^n is one instruction (scalef), of any n, with gradual underflow;
//   - a reciprocal is an estimate and one step of Newton's: about one unit in the last place off;
//   - bfloat16 is never written to a buffer as float32.
//
// Results differ from those of the other levels in the last place: exact mode must not come here.
// Every multiply-add is written as one, so that a rest of a row has the bits of a whole vector.
// Only for sources in kernels/isa/: everything here has internal linkage, per level.
#pragma once

#if defined(__AVX512F__)

#include <cstdint>

#include "autograd/kernels/isa/row_io.h"
#include "autograd/kernels/isa/simd.h"

namespace tapestry::kernels::TAPESTRY_ISA {
namespace {

using Integers = __m512i;

TAPESTRY_INLINE FloatVector fill(float x) { return _mm512_set1_ps(x); }
TAPESTRY_INLINE FloatVector negated_multiply_add(FloatVector a, FloatVector b, FloatVector c) {
  return _mm512_fnmadd_ps(a, b, c);
}
TAPESTRY_INLINE Integers integers_of(FloatVector x) { return _mm512_castps_si512(x); }
TAPESTRY_INLINE FloatVector floats_of(Integers x) { return _mm512_castsi512_ps(x); }

/// c + d x + x^2 (...), given x2 = x^2: half as many steps have to wait for one another.
TAPESTRY_INLINE FloatVector in_pairs(FloatVector /*x*/, FloatVector /*x2*/, float c) {
  return fill(c);
}
template <class... C>
TAPESTRY_INLINE FloatVector in_pairs(FloatVector x, FloatVector x2, float c, float d, C... rest) {
  const FloatVector pair = multiply_add(x, fill(d), fill(c));
  if constexpr (sizeof...(rest) == 0) {
    return pair;
  } else {
    return multiply_add(in_pairs(x, x2, rest...), x2, pair);
  }
}
/// sum_i c_i x^i
template <class... C>
TAPESTRY_INLINE FloatVector wide_polynomial(FloatVector x, C... c) {
  return in_pairs(x, x * x, c...);
}

/// NaN stays NaN, where the limit comes first.
TAPESTRY_INLINE FloatVector larger(FloatVector limit, FloatVector x) {
  return _mm512_maskz_max_ps(kAllLanes, limit, x);
}
TAPESTRY_INLINE FloatVector smaller(FloatVector limit, FloatVector x) {
  return _mm512_maskz_min_ps(kAllLanes, limit, x);
}
TAPESTRY_INLINE FloatVector negative_magnitude(FloatVector x) {
  return floats_of(_mm512_maskz_or_epi32(kAllLanes, integers_of(x), _mm512_set1_epi32(INT32_MIN)));
}
/// a + b, where a is a product that has to be rounded first.
TAPESTRY_INLINE FloatVector plus(FloatVector a, FloatVector b) {
  return _mm512_maskz_add_ps(kAllLanes, a, b);
}
/// Of finite numbers, and -0 counts.
TAPESTRY_INLINE __mmask16 is_negative(FloatVector x) {
  return _mm512_movepi32_mask(integers_of(x));
}

/// p 2^floor(n), for any n.
TAPESTRY_INLINE FloatVector scale_by_power(FloatVector p, FloatVector n) {
  return _mm512_maskz_scalef_ps(kAllLanes, p, n);
}

/// 1 / x, x and the result neither denormal nor infinite.
TAPESTRY_INLINE FloatVector reciprocal(FloatVector x) {
  const FloatVector t = _mm512_maskz_rcp14_ps(kAllLanes, x);
  return multiply_add(negated_multiply_add(x, t, fill(1)), t, t);
}

/// How exactly an exponential is computed: for results that are stored as float32, or as bfloat16,
/// whose rounding is a thousand times coarser.
struct ForFloat {
  /// e^r, |r| <= ln(2) / 2.
  TAPESTRY_INLINE static FloatVector exp_of_fraction(FloatVector r) {
    const FloatVector r2 = r * r;
    const FloatVector q = in_pairs(r, r2, 5.000000097e-01F, 1.666651712e-01F, 4.166620042e-02F,
                                   8.369096263e-03F, 1.395085003e-03F);
    return plus(multiply_add(r2, q, r), fill(1));
  }
  /// exp() of vector_math.h, which says what holds for it.
  TAPESTRY_INLINE static FloatVector exp(FloatVector x) {
    return exp_of_limited(smaller(fill(89), larger(fill(-105), x)));
  }
  TAPESTRY_INLINE static FloatVector exp_of_negative(FloatVector x) {
    return exp_of_limited(larger(fill(-105), x));
  }
  TAPESTRY_INLINE static FloatVector exp_of_limited(FloatVector c) {
    const FloatVector n = _mm512_maskz_roundscale_ps(kAllLanes, c * fill(1.44269504F),
                                                     _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const FloatVector r = multiply_add(n, fill(-kLn2Low), multiply_add(n, fill(-kLn2High), c));
    const FloatVector p = exp_of_fraction(r);
    return scale_by_power(p, n);
  }
};

struct ForBFloat16 {
  /// Relative error below 2e-7 + 6e-8 |x|; e^0 is 1.
  TAPESTRY_INLINE static FloatVector exp(FloatVector x) { return exp2(x * fill(1.44269504F)); }
  TAPESTRY_INLINE static FloatVector exp_of_negative(FloatVector x) { return exp(x); }

  /// 2^x within 2e-7 relative; NaN, infinities and overflow as in IEEE 754.
  TAPESTRY_INLINE static FloatVector exp2(FloatVector x) {
    // The distance to the integer below, from which scalef goes on.
    const FloatVector r =
        _mm512_maskz_reduce_ps(kAllLanes, x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    const FloatVector p = wide_polynomial(r, 1.0F, 6.931513118e-01F, 2.401644502e-01F,
                                          5.579991311e-02F, 9.017030315e-03F, 1.867130073e-03F);
    return scale_by_power(p, x);
  }
};

template <class T>
struct AccuracyFor {
  using type = ForFloat;
};
template <>
struct AccuracyFor<BFloat16> {
  using type = ForBFloat16;
};

/// sigmoid(x) and sigmoid(-x), neither by a difference.
struct Sigmoids {
  FloatVector of_x;
  FloatVector of_minus_x;
};
template <class Accuracy>
TAPESTRY_INLINE Sigmoids sigmoids(FloatVector x) {
  const FloatVector e = Accuracy::exp_of_negative(negative_magnitude(x));
  const FloatVector large = reciprocal(e + fill(1));
  const FloatVector small = e * large;
  const __mmask16 negative = is_negative(x);
  return {_mm512_mask_mov_ps(large, negative, small), _mm512_mask_mov_ps(small, negative, large)};
}

/// Types of which rows are read and written here.
template <class T>
inline constexpr bool kIsWide = kSame<T, float> || kSame<T, BFloat16>;

inline constexpr int64_t kWideStep = 32;

/// 32 elements in the order in which a row of T is read: one after the other, or for bfloat16 those
/// at even places and those at odd ones, which takes one instruction each.
struct WidePair {
  FloatVector a;
  FloatVector b;
};

/// The upper 16 bits of each element are those of the bfloat16.
TAPESTRY_INLINE Integers rounded_to_bfloat16(FloatVector x) {
  const Integers u = integers_of(x);
  const __mmask16 odd = _mm512_test_epi32_mask(u, _mm512_set1_epi32(0x10000));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  const Integers down = _mm512_add_epi32(u, _mm512_set1_epi32(0x7fff));
  const Integers rounded = _mm512_mask_add_epi32(down, odd, down, _mm512_set1_epi32(1));
  return _mm512_mask_or_epi32(rounded, nan, u, _mm512_set1_epi32(0x400000));
}

/// kWideStep elements of rows of T at once, or the first of them.
template <class T, bool kWhole>
class WideStep {
 public:
  explicit WideStep(int64_t count)
      : mask_(kWhole ? ~0U : (1U << static_cast<uint32_t>(count)) - 1) {}

  TAPESTRY_INLINE WidePair read(const BFloat16* x) const {
    const Integers both = kWhole ? _mm512_loadu_si512(x) : _mm512_maskz_loadu_epi16(mask_, x);
    return {floats_of(_mm512_maskz_slli_epi32(kAllLanes, both, 16)),
            floats_of(_mm512_and_epi32(both, _mm512_set1_epi32(-0x10000)))};
  }
  /// With `rest` in the place of elements that are not there.
  template <class X>
  TAPESTRY_INLINE WidePair read_or(float rest, const X* x) const {
    WidePair in = read(x);
    if constexpr (!kWhole) {
      const WideStep<T, true> whole(kWideStep);
      alignas(64) float there[kWideStep];
      const WidePair unknown = {fill(rest), fill(rest)};
      whole.write(unknown, there);
      write(in, there);
      in = whole.read(there);
    }
    return in;
  }
  TAPESTRY_INLINE WidePair read(const float* x) const {
    const WidePair in = {load_part(x, 0), load_part(x, 16)};
    if constexpr (kSame<T, BFloat16>) {
      return {every_second<0>(in.a, in.b, kAll), every_second<1>(in.a, in.b, kAll)};
    }
    return in;
  }
  TAPESTRY_INLINE void write(WidePair out, BFloat16* y) const {
    const Integers even = _mm512_maskz_srli_epi32(kAllLanes, rounded_to_bfloat16(out.a), 16);
    // Upper halves of the odd ones, lower halves of the even ones.
    const Integers both = _mm512_mask_mov_epi16(even, 0xaaaaaaaa, rounded_to_bfloat16(out.b));
    if constexpr (kWhole) {
      _mm512_storeu_si512(y, both);
    } else {
      _mm512_mask_storeu_epi16(y, mask_, both);
    }
  }
  TAPESTRY_INLINE void write(WidePair out, float* y) const {
    if constexpr (kSame<T, BFloat16>) {
      store_part(interleave_first(out.a, out.b, kAll), y, 0);
      store_part(interleave_second(out.a, out.b, kAll), y, 16);
    } else {
      store_part(out.a, y, 0);
      store_part(out.b, y, 16);
    }
  }

 private:
  static constexpr std::make_integer_sequence<int, 16> kAll = {};
  template <int kFirst, int... kLane>
  TAPESTRY_INLINE static FloatVector every_second(FloatVector a,
                                                  FloatVector b,
                                                  std::integer_sequence<int, kLane...> /*lanes*/) {
    return __builtin_shufflevector(a, b, (2 * kLane + kFirst)...);
  }
  TAPESTRY_INLINE FloatVector load_part(const float* x, int at) const {
    if constexpr (kWhole) {
      return _mm512_loadu_ps(x + at);
    }
    return _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask_ >> static_cast<uint32_t>(at)),
                                 x + at);
  }
  TAPESTRY_INLINE void store_part(FloatVector v, float* y, int at) const {
    if constexpr (kWhole) {
      _mm512_storeu_ps(y + at, v);
    } else {
      _mm512_mask_storeu_ps(y + at, static_cast<__mmask16>(mask_ >> static_cast<uint32_t>(at)), v);
    }
  }

  __mmask32 mask_;
};

/// Calls f(i, step) for every kWideStep of n elements and for what is left.
template <class T, class F>
TAPESTRY_INLINE void for_wide_steps(int64_t n, const F& f) {
  int64_t i = 0;
  for (; i + kWideStep <= n; i += kWideStep) {
    f(i, WideStep<T, true>(kWideStep));
  }
  if (i < n) {
    f(i, WideStep<T, false>(n - i));
  }
}

}  // namespace
}  // namespace tapestry::kernels::TAPESTRY_ISA

#endif
