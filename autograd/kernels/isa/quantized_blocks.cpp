#include "autograd/kernels/gemm/quantized_blocks.h"

#include <type_traits>

#include "autograd/kernels/isa/few_rows_forms.h"

namespace tapestry::kernels::TAPESTRY_ISA {

void decode_block_row(BlockFormat format, DType dtype, int64_t n, const void* blocks, void* y);

namespace {

template <class Numbers, class T>
void decode_row(int64_t n, const char* block, T* y) {
  using Form = BlockFloats<Numbers>;
  for (int64_t i = 0; i < n; i += kBlockNumbers, block += Form::kBytes) {
    const auto part = Form::part(block);
    float wide[kBlockNumbers];
#pragma GCC unroll 8
    for (int v = 0; v < kBlockVectors; ++v) {
      store(wide + v * kLane, part.numbers[v] * part.scale);
    }
    store_row(kBlockNumbers, wide, y + i);
  }
}

}  // namespace

void decode_block_row(BlockFormat format, DType dtype, int64_t n, const void* blocks, void* y) {
  for_floating(dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    if constexpr (sizeof(T) <= sizeof(float)) {
      const auto* from = static_cast<const char*>(blocks);
      if (format == BlockFormat::kQ8_0) {
        decode_row<Q8Numbers>(n, from, static_cast<T*>(y));
      } else {
        decode_row<Q4Numbers>(n, from, static_cast<T*>(y));
      }
    }
  });
}

}  // namespace tapestry::kernels::TAPESTRY_ISA
