// How loops read and write rows of any dtype: element by element where the conversion is part of a
// vector loop, else in blocks of kBlock elements of the type they compute in. A row already in that
// type is used in place, others pass through a block on the stack.
//
// Only for sources in kernels/isa/: everything here has internal linkage, per level.
#pragma once

#include <cstdint>

#include "autograd/kernels/isa/vector_math.h"
#include "autograd/kernels/machine/dtype.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace tapestry::kernels::TAPESTRY_ISA {
namespace {

inline constexpr int64_t kBlock = 512;  // elements; three blocks of double stay in the first cache

template <class A, class B>
inline constexpr bool kSame = false;
template <class A>
inline constexpr bool kSame<A, A> = true;

template <class T>
inline constexpr bool kIsNarrow = kSame<T, Float16> || kSame<T, BFloat16>;

template <class T, bool kNarrow>
struct ComputeType {
  using type = T;
};
template <class T>
struct ComputeType<T, true> {
  using type = float;
};
/// What elements stored as T are computed in: 16-bit ones in float32, all others in their own type.
/// bool is stored as uint8_t of 0 or 1.
template <class T>
using compute_t = typename ComputeType<T, kIsNarrow<T>>::type;

/// Types whose conversion to the compute type can be part of a vector loop.
template <class T>
inline constexpr bool kIsDirect = !kSame<T, Float16>;

/// Rounded to nearest even. Without branches, unlike the constructor of BFloat16, so that the loop
/// becomes vector code.
TAPESTRY_INLINE uint16_t bfloat16_bits(float x) {
  const uint32_t u = bits_of(x);
  const uint32_t high = u >> 16U;
  const uint32_t rounded = (u + 0x7fffU + (high & 1U)) >> 16U;
  return static_cast<uint16_t>(x != x ? high | 0x40U : rounded);
}

/// One element in the compute type, and back.
template <class T>
TAPESTRY_INLINE compute_t<T> get(const T& x) {
  if constexpr (kSame<T, BFloat16>) {
    return float_of(static_cast<uint32_t>(x.bits) << 16U);
  } else {
    return static_cast<compute_t<T>>(x);
  }
}
template <class T>
TAPESTRY_INLINE void put(compute_t<T> value, T& y) {
  if constexpr (kSame<T, BFloat16>) {
    y.bits = bfloat16_bits(value);
  } else {
    y = static_cast<T>(value);
  }
}

[[gnu::always_inline]] inline int64_t block_size(int64_t left) {
  return left < kBlock ? left : kBlock;
}

/// out = x, n elements.
template <class T, class C>
[[gnu::always_inline]] inline void load_row(int64_t n, const T* x, C* out) {
  if constexpr (kSame<T, BFloat16>) {
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < n; ++i) {
      out[i] = get(x[i]);
    }
  } else {
    int64_t i = 0;
#if defined(__F16C__)
    if constexpr (kSame<T, Float16> && kSame<C, float>) {
      for (; i + 8 <= n; i += 8) {
        const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i));
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(bits));
      }
    }
#endif
    if constexpr (kSame<T, Float16>) {
      for (; i < n; ++i) {
        out[i] = static_cast<float>(x[i]);
      }
    } else {
      TAPESTRY_VECTOR_LOOP
      for (int64_t j = 0; j < n; ++j) {
        out[j] = static_cast<C>(x[j]);
      }
    }
  }
}

/// y = in, n elements, rounded to nearest even.
template <class T, class C>
[[gnu::always_inline]] inline void store_row(int64_t n, const C* in, T* y) {
  if constexpr (kSame<T, BFloat16>) {
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < n; ++i) {
      put(static_cast<float>(in[i]), y[i]);
    }
  } else if constexpr (kSame<T, Float16>) {
    int64_t i = 0;
#if defined(__F16C__)
    if constexpr (kSame<C, float>) {
      for (; i + 8 <= n; i += 8) {
        const __m256 whole = _mm256_loadu_ps(in + i);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(y + i),
                         _mm256_cvtps_ph(whole, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
      }
    }
#endif
    for (; i < n; ++i) {
      y[i] = Float16(static_cast<float>(in[i]));
    }
  } else {
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < n; ++i) {
      y[i] = static_cast<T>(in[i]);
    }
  }
}

/// The n elements as compute type: x itself where it is that, else a copy in `block`.
template <class T, class C>
[[gnu::always_inline]] inline const C* read_block(int64_t n, const T* x, C* block) {
  if constexpr (kSame<T, C>) {
    return x;
  } else {
    load_row(n, x, block);
    return block;
  }
}

/// Where to write n elements that belong at y: y itself, or `block`; then call write_block.
template <class T, class C>
[[gnu::always_inline]] inline C* output_block(T* y, C* block) {
  if constexpr (kSame<T, C>) {
    return y;
  } else {
    return block;
  }
}
template <class T, class C>
[[gnu::always_inline]] inline void write_block(int64_t n, const C* out, T* y) {
  if constexpr (!kSame<T, C>) {
    store_row(n, out, y);
  }
}

/// Calls f with a null pointer of the element type of a floating dtype.
template <class F>
[[gnu::always_inline]] inline void for_floating(DType dtype, const F& f) {
  switch (dtype) {
    case kFloat32:
      return f(static_cast<float*>(nullptr));
    case kFloat64:
      return f(static_cast<double*>(nullptr));
    case kBFloat16:
      return f(static_cast<BFloat16*>(nullptr));
    case kFloat16:
      return f(static_cast<Float16*>(nullptr));
    default:
      __builtin_unreachable();
  }
}

}  // namespace
}  // namespace tapestry::kernels::TAPESTRY_ISA
