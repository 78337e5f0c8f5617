// What products of few rows make of a piece of a row of W, and of the same piece of a row of x.
//
// A form says how many numbers such a chunk has (kCount), its bytes in W (kBytes), the floats that
// it takes in packed x (kFloats), and adds the products of a chunk of each to a vector of sums.
// load() is called once for all rows of x that meet the chunk of W.
//
// Only for sources in kernels/isa/: everything here has internal linkage, per level.
#pragma once

#include "autograd/kernels/gemm/q8_0.h"
#include "autograd/kernels/isa/row_io.h"
#include "autograd/kernels/isa/simd.h"

namespace tapestry::kernels::TAPESTRY_ISA {
namespace {

inline constexpr int64_t kLane = kLanes<float>;

/// float16 scale of a block.
[[gnu::always_inline]] inline float scale_of(const char* block) {
  uint16_t bits = 0;
  __builtin_memcpy(&bits, block, sizeof(bits));
#if defined(__F16C__)
  return _cvtsh_ss(bits);
#else
  Float16 scale;
  scale.bits = bits;
  return static_cast<float>(scale);
#endif
}

#if !defined(TAPESTRY_PAIRS)
/// Keeps a vector that is used several times from being loaded for each use: with 16 registers
/// that is what compilers do, and loads are then the limit.
[[gnu::always_inline]] inline FloatVector in_registers(FloatVector v) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  asm("" : "+x"(v));
#endif
  return v;
}

/// The same number of elements as floats.
template <class T>
[[gnu::always_inline]] inline FloatVector load_floats(const char* from) {
#if defined(__AVX512F__)
  if constexpr (kSame<T, Float16>) {
    return _mm512_maskz_cvtph_ps(kAllLanes,
                                 _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
#elif defined(__AVX2__)
  if constexpr (kSame<T, Float16>) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
#endif
  if constexpr (kSame<T, float>) {
    return load(reinterpret_cast<const float*>(from));
  } else {
    T elements[kLane];
    __builtin_memcpy(elements, from, sizeof(elements));
    float wide[kLane];
    load_row(kLane, elements, wide);
    return load(wide);
  }
}

/// A vector of floats, from T.
template <class T>
struct InOrder {
  static constexpr int64_t kCount = kLane;
  static constexpr int64_t kBytes = kLane * static_cast<int64_t>(sizeof(T));
  static constexpr int64_t kFloats = kLane;
  using Part = FloatVector;
  using X = FloatVector;
  [[gnu::always_inline]] static Part part(const char* w) { return load_floats<T>(w); }
  [[gnu::always_inline]] static X x(const float* packed) { return load(packed); }
  [[gnu::always_inline]] static FloatVector add(const Part& w, const X& x, FloatVector sum) {
    return multiply_add(w, x, sum);
  }
};

/// bfloat16 as two vectors of floats, of the even and of the odd ones: a shift and a mask widen
/// them.
struct EvenOdd {
  static constexpr int64_t kCount = 2 * kLane;
  static constexpr int64_t kBytes = kCount * 2;
  static constexpr int64_t kFloats = kCount;
  struct Two {
    FloatVector even, odd;
  };
  using Part = Two;
  using X = Two;
  [[gnu::always_inline]] static Part part(const char* w) {
    UInt32Vector both;
    __builtin_memcpy(&both, w, sizeof(both));
    return {reinterpret_cast<FloatVector>(both << 16U),
            reinterpret_cast<FloatVector>(both & 0xffff0000U)};
  }
  [[gnu::always_inline]] static X x(const float* packed) {
    return {load(packed), load(packed + kLane)};
  }
  [[gnu::always_inline]] static FloatVector add(const Part& w, const X& x, FloatVector sum) {
    return multiply_add(w.odd, x.odd, multiply_add(w.even, x.even, sum));
  }
};

[[gnu::always_inline]] inline EvenOdd::Two in_registers(const EvenOdd::Two& two) {
  return {in_registers(two.even), in_registers(two.odd)};
}

/// A block of Q8_0 as floats.
struct Q8Floats {
  static constexpr int64_t kCount = kQ8Block;
  static constexpr int64_t kBytes = kQ8BlockBytes;
  static constexpr int64_t kFloats = kQ8Block;
  static constexpr int kVectors = kQ8Block / kLane;
  struct Part {
    FloatVector numbers[kVectors];
    FloatVector scale;
  };
  using X = const float*;
  [[gnu::always_inline]] static Part part(const char* w) {
    Part part;
    part.scale = broadcast(scale_of(w));
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) {
      const char* from = w + 2 + i * kLane;
#if defined(__AVX512F__)
      part.numbers[i] = _mm512_maskz_cvtepi32_ps(
          kAllLanes, _mm512_maskz_cvtepi8_epi32(
                         kAllLanes, _mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#elif defined(__AVX2__)
      part.numbers[i] = _mm256_cvtepi32_ps(
          _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#else
      for (int64_t j = 0; j < kLane; ++j) {
        part.numbers[i][j] = static_cast<float>(static_cast<int8_t>(from[j]));
      }
#endif
    }
    return part;
  }
  [[gnu::always_inline]] static X x(const float* packed) { return packed; }
  [[gnu::always_inline]] static FloatVector add(const Part& w, X x, FloatVector sum) {
    FloatVector block = w.numbers[0] * load(x);
#pragma GCC unroll 8
    for (int i = 1; i < kVectors; ++i) {
      block = multiply_add(w.numbers[i], load(x + i * kLane), block);
    }
    return multiply_add(block, w.scale, sum);
  }
};

[[gnu::always_inline]] inline const float* in_registers(const float* x) { return x; }

#else
[[gnu::always_inline]] inline __m512bh in_registers(__m512bh x) { return x; }

struct Pairs {
  static constexpr int64_t kCount = 2 * kLane;
  static constexpr int64_t kBytes = kCount * 2;
  static constexpr int64_t kFloats = kLane;
  using Part = __m512bh;
  using X = __m512bh;
  [[gnu::always_inline]] static Part part(const char* w) {
    return reinterpret_cast<__m512bh>(_mm512_loadu_si512(w));
  }
  [[gnu::always_inline]] static X x(const float* packed) {
    return reinterpret_cast<__m512bh>(_mm512_loadu_si512(packed));
  }
  [[gnu::always_inline]] static FloatVector add(const Part& w, const X& x, FloatVector sum) {
    return _mm512_dpbf16_ps(sum, w, x);
  }
};

/// A block of Q8_0 as bfloat16.
struct Q8Pairs {
  static constexpr int64_t kCount = kQ8Block;
  static constexpr int64_t kBytes = kQ8BlockBytes;
  static constexpr int64_t kFloats = kLane;
  struct Part {
    __m512bh numbers;
    FloatVector scale;
  };
  using X = __m512bh;
  [[gnu::always_inline]] static Part part(const char* w) {
    const auto half = [&](int64_t from) {
      return _mm512_maskz_cvtepi32_ps(
          kAllLanes,
          _mm512_maskz_cvtepi8_epi32(
              kAllLanes, _mm_loadu_si128(reinterpret_cast<const __m128i*>(w + 2 + from))));
    };
    return {_mm512_cvtne2ps_pbh(half(16), half(0)), broadcast(scale_of(w))};
  }
  [[gnu::always_inline]] static X x(const float* packed) { return Pairs::x(packed); }
  [[gnu::always_inline]] static FloatVector add(const Part& w, const X& x, FloatVector sum) {
    return multiply_add(_mm512_dpbf16_ps(FloatVector{}, w.numbers, x), w.scale, sum);
  }
};
#endif

}  // namespace
}  // namespace tapestry::kernels::TAPESTRY_ISA
