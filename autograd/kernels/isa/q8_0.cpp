#include "autograd/kernels/gemm/q8_0.h"

#include <type_traits>

#include "autograd/kernels/isa/few_rows_forms.h"

namespace tapestry::kernels::TAPESTRY_ISA {

void decode_q8_0_row(DType dtype, int64_t n, const void* blocks, void* y);

namespace {

template <class T>
void decode_blocks(int64_t n, const char* block, T* y) {
  for (int64_t i = 0; i < n; i += kQ8Block, block += kQ8BlockBytes) {
    const auto part = Q8Floats::part(block);
    float wide[kQ8Block];
#pragma GCC unroll 8
    for (int v = 0; v < Q8Floats::kVectors; ++v) {
      store(wide + v * kLane, part.numbers[v] * part.scale);
    }
    store_row(kQ8Block, wide, y + i);
  }
}

}  // namespace

void decode_q8_0_row(DType dtype, int64_t n, const void* blocks, void* y) {
  for_floating(dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    if constexpr (sizeof(T) <= sizeof(float)) {
      decode_blocks(n, static_cast<const char*>(blocks), static_cast<T*>(y));
    }
  });
}

}  // namespace tapestry::kernels::TAPESTRY_ISA
