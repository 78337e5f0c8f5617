#include "autograd/kernels/gemm/q8_0.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cmath>
#include <cstring>

#include "autograd/kernels/elementwise/elementwise.h"
#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/parallel_for.h"

namespace tapestry::kernels {

TAPESTRY_DECLARE_PER_ISA(void decode_q8_0_row(DType dtype, int64_t n, const void* blocks, void* y))

namespace {

/// False if a number is not finite, or the scale is none. Compiled without fused products: they
/// would round the quotient another way.
bool encode_q8_block(const float* x, char* block) {
  float most = 0;
  bool finite = true;
  for (int64_t i = 0; i < kQ8Block; ++i) {
    const float size = std::fabs(x[i]);
    finite = finite && size <= 3.402823466e38F;
    most = std::max(most, size);
  }
  const float step = most / 127.0F;
  const Float16 scale(step);
  std::memcpy(block, &scale.bits, sizeof(scale.bits));
  // Where the inverse overflows, the scale is 0 as float16, and so are all numbers.
  float inverse = step == 0 ? 0.0F : 1.0F / step;
  if (!(inverse <= 3.402823466e38F)) {
    inverse = 0;
  }
  auto* out = reinterpret_cast<int8_t*>(block + sizeof(scale.bits));
  for (int64_t i = 0; i < kQ8Block; ++i) {
    const float quotient = x[i] * inverse;
    const auto whole = static_cast<int>(quotient);
    const float rest = quotient - static_cast<float>(whole);  // exact
    out[i] = static_cast<int8_t>(whole + (rest >= 0.5F ? 1 : 0) - (rest <= -0.5F ? 1 : 0));
  }
  return finite && static_cast<float>(scale) <= 65504.0F;
}

}  // namespace

bool encode_q8_0(DType dtype, int64_t rows, int64_t n, const void* x, int64_t ld, void* blocks) {
  assert(n % kQ8Block == 0);
  const UnaryRow widen = dtype == kFloat32 ? nullptr : cast_row(dtype, kFloat32);
  std::atomic<bool> good = true;
  parallel_for(rows, std::max<int64_t>(1, kGrainSize / 4 / std::max<int64_t>(1, n)),
               [&](int64_t begin, int64_t end) {
                 bool own = true;
                 for (int64_t row = begin; row < end; ++row) {
                   const char* from = static_cast<const char*>(x) + row * ld * size_of(dtype);
                   char* to = static_cast<char*>(blocks) + row * q8_0_row_bytes(n);
                   for (int64_t i = 0; i < n && own; i += kQ8Block, to += kQ8BlockBytes) {
                     float wide[kQ8Block];
                     if (widen != nullptr) {
                       widen(kQ8Block, from + i * size_of(dtype), 1, wide, 1);
                     } else {
                       std::memcpy(wide, from + i * size_of(dtype), sizeof(wide));
                     }
                     own = encode_q8_block(wide, to);
                   }
                 }
                 if (!own) {
                   good = false;
                 }
               });
  return good;
}

void decode_q8_0(
    DType dtype, int64_t rows, int64_t n, const void* blocks, int64_t stride, void* y, int64_t ld) {
  assert(n % kQ8Block == 0);
  parallel_for(rows, std::max<int64_t>(1, kGrainSize / std::max<int64_t>(1, n)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t row = begin; row < end; ++row) {
                   TAPESTRY_DISPATCH(decode_q8_0_row)
                   (dtype, n, static_cast<const char*>(blocks) + row * stride,
                    static_cast<char*>(y) + row * ld * size_of(dtype));
                 }
               });
}

}  // namespace tapestry::kernels
