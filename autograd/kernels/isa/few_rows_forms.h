// What products of few rows make of a piece of a row of W, and of the same piece of a row of x.
//
// A form says how many numbers such a chunk has (kCount), its bytes in W (kBytes), whether a row
// of W has whole ones alone (kWhole), the floats that it takes in packed x (kFloats), and adds the
// products of a chunk of each to a vector of sums. part() is called once for all rows of x that
// meet the chunk of W. A single row of x meets kRowsOfOne rows of W at a time: memory is read
// fastest in one stream, but where that is a long chain of sums it is slower.
//
// Only for sources in kernels/isa/: everything here has internal linkage, per level.
#pragma once

#include "autograd/kernels/gemm/quantized_blocks.h"
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
  static constexpr bool kWhole = false;
  static constexpr int kRowsOfOne = 2;
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
  static constexpr bool kWhole = false;
  static constexpr int kRowsOfOne = 2;
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

inline constexpr int kBlockVectors = kBlockNumbers / kLane;

/// The numbers of a block of Q8_0 without its scale.
struct Q8Numbers {
  static constexpr int64_t kBytes = block_bytes(BlockFormat::kQ8_0);
  static constexpr int kRowsOfOne = 2;
  [[gnu::always_inline]] static void widen(const char* block, FloatVector (&out)[kBlockVectors]) {
#pragma GCC unroll 8
    for (int i = 0; i < kBlockVectors; ++i) {
      const char* from = block + 2 + i * kLane;
#if defined(__AVX512F__)
      out[i] = _mm512_maskz_cvtepi32_ps(
          kAllLanes, _mm512_maskz_cvtepi8_epi32(
                         kAllLanes, _mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#elif defined(__AVX2__)
      out[i] = _mm256_cvtepi32_ps(
          _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#else
      for (int64_t j = 0; j < kLane; ++j) {
        out[i][j] = static_cast<float>(static_cast<int8_t>(from[j]));
      }
#endif
    }
  }
};

/// Those of a block of Q4_0: each byte gives a number of the first half and one of the second.
struct Q4Numbers {
  static constexpr int64_t kBytes = block_bytes(BlockFormat::kQ4_0);
  static constexpr int kRowsOfOne = kLane < 16 ? 2 : 4;
  [[gnu::always_inline]] static void widen(const char* block, FloatVector (&out)[kBlockVectors]) {
#pragma GCC unroll 4
    for (int i = 0; i < kBlockVectors / 2; ++i) {
      const char* from = block + 2 + i * kLane;
      FloatVector& low = out[i];
      FloatVector& high = out[i + kBlockVectors / 2];
#if defined(__AVX512F__)
      // Of an index only the lower four bits count.
      const FloatVector table = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
      const __m512i both = _mm512_maskz_cvtepu8_epi32(
          kAllLanes, _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
      low = _mm512_maskz_permutexvar_ps(kAllLanes, both, table);
      high = _mm512_maskz_permutexvar_ps(kAllLanes, _mm512_maskz_srli_epi32(kAllLanes, both, 4),
                                         table);
#elif defined(__AVX2__)
      const __m256i both =
          _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
      const FloatVector middle = broadcast(8.0F);
      low = _mm256_cvtepi32_ps(_mm256_and_si256(both, _mm256_set1_epi32(15))) - middle;
      high = _mm256_cvtepi32_ps(_mm256_srli_epi32(both, 4)) - middle;
#else
      for (int64_t j = 0; j < kLane; ++j) {
        const int both = static_cast<uint8_t>(from[j]);
        low[j] = static_cast<float>((both & 15) - 8);
        high[j] = static_cast<float>((both >> 4) - 8);
      }
#endif
    }
  }
};

/// A block as floats.
template <class Numbers>
struct BlockFloats {
  static constexpr int64_t kCount = kBlockNumbers;
  static constexpr int64_t kBytes = Numbers::kBytes;
  static constexpr int64_t kFloats = kBlockNumbers;
  static constexpr bool kWhole = true;
  static constexpr int kRowsOfOne = Numbers::kRowsOfOne;
  struct Part {
    FloatVector numbers[kBlockVectors];
    FloatVector scale;
  };
  using X = const float*;
  [[gnu::always_inline]] static Part part(const char* w) {
    Part part;
    part.scale = broadcast(scale_of(w));
    Numbers::widen(w, part.numbers);
    return part;
  }
  [[gnu::always_inline]] static X x(const float* packed) { return packed; }
  [[gnu::always_inline]] static FloatVector add(const Part& w, X x, FloatVector sum) {
    FloatVector block = w.numbers[0] * load(x);
#pragma GCC unroll 8
    for (int i = 1; i < kBlockVectors; ++i) {
      block = multiply_add(w.numbers[i], load(x + i * kLane), block);
    }
    return multiply_add(block, w.scale, sum);
  }
};

template <class Form>
inline constexpr bool kIsBlocks = false;
template <class Numbers>
inline constexpr bool kIsBlocks<BlockFloats<Numbers>> = true;

[[gnu::always_inline]] inline const float* in_registers(const float* x) { return x; }

#else
[[gnu::always_inline]] inline __m512bh in_registers(__m512bh x) { return x; }

struct Pairs {
  static constexpr int64_t kCount = 2 * kLane;
  static constexpr int64_t kBytes = kCount * 2;
  static constexpr int64_t kFloats = kLane;
  static constexpr bool kWhole = false;
  static constexpr int kRowsOfOne = 1;
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

/// The numbers of a block of Q8_0 without its scale; bfloat16 holds 8 bits exactly.
struct Q8PairNumbers {
  static constexpr int64_t kBytes = block_bytes(BlockFormat::kQ8_0);
  static constexpr int kRowsOfOne = 2;
  [[gnu::always_inline]] static __m512bh widen(const char* block) {
    const auto half = [&](int64_t from) {
      return _mm512_maskz_cvtepi32_ps(
          kAllLanes,
          _mm512_maskz_cvtepi8_epi32(
              kAllLanes, _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 2 + from))));
    };
    return _mm512_cvtne2ps_pbh(half(16), half(0));
  }
};

/// Those of a block of Q4_0.
struct Q4PairNumbers {
  static constexpr int64_t kBytes = block_bytes(BlockFormat::kQ4_0);
  static constexpr int kRowsOfOne = 4;
  [[gnu::always_inline]] static __m512bh widen(const char* block) {
    // -8 to 7 twice: an index has five bits, of which the fifth is the other number's.
    constexpr int16_t kA = static_cast<int16_t>(0xc100);
    constexpr int16_t kB = static_cast<int16_t>(0xc0e0);
    constexpr int16_t kC = static_cast<int16_t>(0xc0c0);
    constexpr int16_t kD = static_cast<int16_t>(0xc0a0);
    constexpr int16_t kE = static_cast<int16_t>(0xc080);
    constexpr int16_t kF = static_cast<int16_t>(0xc040);
    constexpr int16_t kG = static_cast<int16_t>(0xc000);
    constexpr int16_t kH = static_cast<int16_t>(0xbf80);
    alignas(64) static constexpr int16_t kTable[32] = {
        kA, kB, kC, kD, kE, kF, kG, kH, 0, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0,
        kA, kB, kC, kD, kE, kF, kG, kH, 0, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0};
    alignas(64) static constexpr int16_t kShifts[32] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                                                        0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4,
                                                        4, 4, 4, 4, 4, 4, 4, 4, 4, 4};
    constexpr __mmask32 kAllWords = 0xffffffffU;
    const __m256i bytes =
        _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 2)));
    const __m512i both = _mm512_maskz_cvtepu8_epi16(kAllWords, bytes);
    const __m512i index = _mm512_maskz_srlv_epi16(kAllWords, both, _mm512_load_si512(kShifts));
    return reinterpret_cast<__m512bh>(
        _mm512_maskz_permutexvar_epi16(kAllWords, index, _mm512_load_si512(kTable)));
  }
};

/// A block as bfloat16.
template <class Numbers>
struct BlockPairs {
  static constexpr int64_t kCount = kBlockNumbers;
  static constexpr int64_t kBytes = Numbers::kBytes;
  static constexpr int64_t kFloats = kLane;
  static constexpr bool kWhole = true;
  static constexpr int kRowsOfOne = Numbers::kRowsOfOne;
  struct Part {
    __m512bh numbers;
    FloatVector scale;
  };
  using X = __m512bh;
  [[gnu::always_inline]] static Part part(const char* w) {
    return {Numbers::widen(w), broadcast(scale_of(w))};
  }
  [[gnu::always_inline]] static X x(const float* packed) { return Pairs::x(packed); }
  [[gnu::always_inline]] static FloatVector add(const Part& w, const X& x, FloatVector sum) {
    return multiply_add(_mm512_dpbf16_ps(FloatVector{}, w.numbers, x), w.scale, sum);
  }
};
#endif

}  // namespace
}  // namespace tapestry::kernels::TAPESTRY_ISA
