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

/// y = x; y and bytes are multiples of 64. Without such stores, as memcpy().
[[gnu::always_inline]] inline void stream_bytes(int64_t bytes, const void* x, void* y) {
#if defined(__SSE2__)
  const auto* from = static_cast<const float*>(x);
  auto* to = static_cast<float*>(y);
  for (int64_t i = 0; i < bytes / 4; i += kLanes<float>) {
    const FloatVector v = load(from + i);
#if defined(__AVX512F__)
    _mm512_stream_ps(to + i, v);
#elif defined(__AVX2__)
    _mm256_stream_ps(to + i, v);
#else
    _mm_stream_ps(to + i, v);
#endif
  }
#else
  __builtin_memcpy(y, x, static_cast<size_t>(bytes));
#endif
}

/// What was streamed is seen by whoever sees what the thread does next.
[[gnu::always_inline]] inline void end_streams() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace
}  // namespace tapestry::kernels::TAPESTRY_ISA
