#include "autograd/kernels/gemm/gemm_widened.h"

#include <algorithm>

#include "autograd/kernels/elementwise/elementwise.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/kernels/machine/scratch.h"

namespace tapestry::kernels {

namespace {

/// rows x cols from 16-bit rows to a dense float32 matrix.
void widen(DType dtype, int64_t rows, int64_t cols, const char* x, int64_t ld, float* y) {
  const UnaryRow row = cast_row(dtype, kFloat32);
  const int64_t item = size_of(dtype);
  const int64_t grain = std::max<int64_t>(1, kGrainSize / std::max<int64_t>(1, cols));
  parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      row(cols, x + i * ld * item, 1, y + i * cols, 1);
    }
  });
}

/// c = sums + beta c, rounded once, for 16-bit c.
void round_into(
    DType dtype, int64_t m, int64_t n, const float* sums, double beta, char* c, int64_t ldc) {
  const UnaryRow narrow = cast_row(kFloat32, dtype);
  const UnaryRow wide = cast_row(dtype, kFloat32);
  const int64_t item = size_of(dtype);
  constexpr int64_t kPart = 512;
  const int64_t grain = std::max<int64_t>(1, kGrainSize / std::max<int64_t>(1, n));
  parallel_for(m, grain, [&](int64_t begin, int64_t end) {
    float old[kPart];
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = 0; j < n; j += kPart) {
        const int64_t count = std::min(kPart, n - j);
        char* out = c + (i * ldc + j) * item;
        const float* sum = sums + i * n + j;
        if (beta == 0) {
          narrow(count, sum, 1, out, 1);
          continue;
        }
        wide(count, out, 1, old, 1);
        for (int64_t q = 0; q < count; ++q) {
          old[q] = sum[q] + static_cast<float>(beta) * old[q];
        }
        narrow(count, old, 1, out, 1);
      }
    }
  });
}

}  // namespace

void widened_gemm(
    const GemmShape& s, const void* a_, const void* b_, void* c_, Float32Gemm multiply) {
  constexpr int64_t kBlock = 1024;
  constexpr int64_t kDepth = 512;
  const auto* a = static_cast<const char*>(a_);
  const auto* b = static_cast<const char*>(b_);
  auto* c = static_cast<char*>(c_);
  const int64_t item = size_of(s.dtype);
  const int64_t c_item = size_of(s.c_dtype);
  const bool direct = s.c_dtype == kFloat32;
  const auto floats = [](int64_t rows, int64_t columns) {
    return Scratch(rows * columns * size_of(kFloat32));
  };
  const int64_t most_m = std::min(kBlock, s.m);
  const int64_t most_n = std::min(kBlock, s.n);
  const int64_t most_k = std::min(kDepth, s.k);
  const Scratch a_memory = floats(most_m, most_k);
  const Scratch b_memory = floats(most_k, most_n);
  const Scratch sum_memory = direct ? Scratch() : floats(most_m, most_n);
  auto* const a_wide = static_cast<float*>(a_memory.get());
  auto* const b_wide = static_cast<float*>(b_memory.get());
  for (int64_t j = 0; j < s.n; j += kBlock) {
    for (int64_t i = 0; i < s.m; i += kBlock) {
      GemmShape block = s;
      block.dtype = kFloat32;
      block.c_dtype = kFloat32;
      block.m = std::min(kBlock, s.m - i);
      block.n = std::min(kBlock, s.n - j);
      block.ldc = direct ? s.ldc : block.n;
      char* c_block = c + (i * s.ldc + j) * c_item;
      auto* sums = static_cast<float*>(direct ? static_cast<void*>(c_block) : sum_memory.get());
      for (int64_t p = 0; p < s.k; p += kDepth) {
        block.k = std::min(kDepth, s.k - p);
        block.lda = s.trans_a ? block.m : block.k;
        block.ldb = s.trans_b ? block.k : block.n;
        block.beta = p > 0 ? 1.0 : (direct ? s.beta : 0.0);
        widen(s.dtype, s.trans_a ? block.k : block.m, block.lda,
              a + (s.trans_a ? p * s.lda + i : i * s.lda + p) * item, s.lda, a_wide);
        widen(s.dtype, s.trans_b ? block.n : block.k, block.ldb,
              b + (s.trans_b ? j * s.ldb + p : p * s.ldb + j) * item, s.ldb, b_wide);
        multiply(block, a_wide, b_wide, sums);
      }
      if (!direct) {
        round_into(s.c_dtype, block.m, block.n, sums, s.beta, c_block, s.ldc);
      }
    }
  }
}

}  // namespace tapestry::kernels
