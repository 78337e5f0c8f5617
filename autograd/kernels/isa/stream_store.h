// Stores past the caches, for results that are larger than these: a line that is written whole need
// not be read before.
//
// Only for sources in kernels/isa/: everything here has internal linkage, per level.
#pragma once

#include <cstdint>

#include "autograd/kernels/isa/simd.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace tapestry::kernels::TAPESTRY_ISA {
namespace {

/// y = v, past the caches where there is a store for so many bytes; y is aligned to them.
template <class V>
[[gnu::always_inline]] inline void stream(void* y, V v) {
#if defined(__AVX512F__)
  if constexpr (sizeof(V) == 64) {
    _mm512_stream_si512(static_cast<__m512i*>(y), __builtin_bit_cast(__m512i, v));
    return;
  }
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(V) == 32) {
    _mm256_stream_si256(static_cast<__m256i*>(y), __builtin_bit_cast(__m256i, v));
    return;
  }
#endif
#if defined(__SSE2__)
  if constexpr (sizeof(V) == 16) {
    _mm_stream_si128(static_cast<__m128i*>(y), __builtin_bit_cast(__m128i, v));
    return;
  }
#endif
  __builtin_memcpy(y, &v, sizeof(V));
}

/// y = x; y and bytes are multiples of 64.
[[gnu::always_inline]] inline void stream_bytes(int64_t bytes, const void* x, void* y) {
  for (int64_t at = 0; at < bytes; at += kVectorBytes) {
    stream(static_cast<char*>(y) + at,
           load(reinterpret_cast<const float*>(static_cast<const char*>(x) + at)));
  }
}

/// What was streamed is seen by whoever sees what the thread does next.
[[gnu::always_inline]] inline void end_streams() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace
}  // namespace tapestry::kernels::TAPESTRY_ISA
