#include "autograd/kernels/gemm/quantized_blocks.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cmath>
#include <cstring>

#include "autograd/kernels/elementwise/elementwise.h"
#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/parallel_for.h"

namespace tapestry::kernels {

TAPESTRY_DECLARE_PER_ISA(
    void decode_block_row(BlockFormat format, DType dtype, int64_t n, const void* blocks, void* y))

namespace {

// This file is compiled without fused products: they would round quotients another way.

constexpr float kLargestFloat = 3.402823466e38F;
constexpr int64_t kHalfBlock = kBlockNumbers / 2;

/// The largest magnitude of a block; what is not finite counts as infinity.
float largest_magnitude(const float* x) {
  float most = 0;
  bool finite = true;
  for (int64_t i = 0; i < kBlockNumbers; ++i) {
    const float size = std::fabs(x[i]);
    finite = finite && size <= kLargestFloat;
    most = std::max(most, size);
  }
  return finite ? most : HUGE_VALF;
}

/// Puts the scale in front of the block and gives its inverse: 0 where that overflows, where the
/// scale is 0 as float16, and so are all numbers.
float put_scale(float step, char* block) {
  const Float16 scale(step);
  std::memcpy(block, &scale.bits, sizeof(scale.bits));
  const float inverse = step == 0 ? 0.0F : 1.0F / step;
  return std::fabs(inverse) <= kLargestFloat ? inverse : 0.0F;
}

void encode_q8_numbers(const float* x, float most, char* block) {
  const float inverse = put_scale(most / 127.0F, block);
  auto* out = reinterpret_cast<int8_t*>(block + sizeof(uint16_t));
  for (int64_t i = 0; i < kBlockNumbers; ++i) {
    const float quotient = x[i] * inverse;
    const auto whole = static_cast<int>(quotient);
    const float rest = quotient - static_cast<float>(whole);  // exact
    out[i] = static_cast<int8_t>(whole + (rest >= 0.5F ? 1 : 0) - (rest <= -0.5F ? 1 : 0));
  }
}

void encode_q4_numbers(const float* x, float most, char* block) {
  const float* first =
      std::find_if(x, x + kBlockNumbers, [&](float value) { return std::fabs(value) == most; });
  const float inverse = put_scale(*first / -8.0F, block);
  auto* out = reinterpret_cast<uint8_t*>(block + sizeof(uint16_t));
  int q[kBlockNumbers];
  for (int64_t i = 0; i < kBlockNumbers; ++i) {
    const float quotient = x[i] * inverse;
    q[i] = std::min(15, static_cast<int>(quotient + 8.5F));
  }
  for (int64_t i = 0; i < kHalfBlock; ++i) {
    out[i] = static_cast<uint8_t>(q[i] | q[kHalfBlock + i] << 4);
  }
}

/// False if a number is not finite, or the scale is none.
bool encode_block(BlockFormat format, const float* x, char* block) {
  const float most = largest_magnitude(x);
  if (!(most <= kLargestFloat)) {
    return false;
  }
  switch (format) {
    case BlockFormat::kQ8_0:
      encode_q8_numbers(x, most, block);
      break;
    case BlockFormat::kQ4_0:
      encode_q4_numbers(x, most, block);
      break;
  }
  Float16 scale;
  std::memcpy(&scale.bits, block, sizeof(scale.bits));
  return std::fabs(static_cast<float>(scale)) <= 65504.0F;
}

}  // namespace

bool encode_blocks(BlockFormat format,
                   DType dtype,
                   int64_t rows,
                   int64_t n,
                   const void* x,
                   int64_t ld,
                   void* blocks) {
  assert(n % kBlockNumbers == 0);
  const UnaryRow widen = dtype == kFloat32 ? nullptr : cast_row(dtype, kFloat32);
  const int64_t bytes = block_bytes(format);
  std::atomic<bool> good = true;
  parallel_for(rows, std::max<int64_t>(1, kGrainSize / 4 / std::max<int64_t>(1, n)),
               [&](int64_t begin, int64_t end) {
                 bool own = true;
                 for (int64_t row = begin; row < end; ++row) {
                   const char* from = static_cast<const char*>(x) + row * ld * size_of(dtype);
                   char* to = static_cast<char*>(blocks) + row * block_row_bytes(format, n);
                   for (int64_t i = 0; i < n && own; i += kBlockNumbers, to += bytes) {
                     float wide[kBlockNumbers];
                     if (widen != nullptr) {
                       widen(kBlockNumbers, from + i * size_of(dtype), 1, wide, 1);
                     } else {
                       std::memcpy(wide, from + i * size_of(dtype), sizeof(wide));
                     }
                     own = encode_block(format, wide, to);
                   }
                 }
                 if (!own) {
                   good = false;
                 }
               });
  return good;
}

void decode_blocks(BlockFormat format,
                   DType dtype,
                   int64_t rows,
                   int64_t n,
                   const void* blocks,
                   int64_t stride,
                   void* y,
                   int64_t ld) {
  assert(n % kBlockNumbers == 0);
  parallel_for(rows, std::max<int64_t>(1, kGrainSize / std::max<int64_t>(1, n)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t row = begin; row < end; ++row) {
                   TAPESTRY_DISPATCH(decode_block_row)
                   (format, dtype, n, static_cast<const char*>(blocks) + row * stride,
                    static_cast<char*>(y) + row * ld * size_of(dtype));
                 }
               });
}

}  // namespace tapestry::kernels
