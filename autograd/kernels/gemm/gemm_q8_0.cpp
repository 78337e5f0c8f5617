#include "autograd/kernels/gemm/gemm_q8_0.h"

#include <algorithm>
#include <cassert>

#include "autograd/kernels/gemm/gemm.h"
#include "autograd/kernels/gemm/gemm_few_rows.h"
#include "autograd/kernels/gemm/gemm_tiled.h"
#include "autograd/kernels/gemm/q8_0.h"
#include "autograd/kernels/machine/ceil_div.h"
#include "autograd/kernels/machine/scratch.h"
#include "autograd/kernels/machine/work_counter.h"

namespace tapestry::kernels {

namespace {

/// What is decoded at a time: it stays in the last-level cache until it is multiplied.
constexpr int64_t kDecodedBytes = int64_t{4} << 20;
/// Decoding for fewer rows of x takes longer than to multiply with the blocks as they lie.
constexpr int64_t kMostFewRows = 64;
constexpr int64_t kUnitLines = 64;

const char* q8_at(const void* x, DType dtype, int64_t elements) {
  return static_cast<const char*>(x) + elements * size_of(dtype);
}

int64_t lines_at_a_time(int64_t line_bytes, int64_t bytes, int64_t least) {
  const int64_t lines = std::max(least, bytes / std::max<int64_t>(1, line_bytes));
  return lines / kUnitLines * kUnitLines;
}

}  // namespace

void gemm_q8_0(DType dtype,
               int64_t n,
               const Q8Matrix& w,
               const void* x,
               int64_t ldx,
               double beta,
               void* y,
               int64_t ldy) {
  assert(w.in % kQ8Block == 0);
  if (n == 0 || w.out == 0) {
    return;
  }
  const int64_t stride = q8_0_row_bytes(w.in);
  if (n <= kMostFewRows && w.in > 0) {
    const CountedWork work(2.0 * static_cast<double>(n) * static_cast<double>(w.out) *
                           static_cast<double>(w.in));
    const bool pairs = dtype == kBFloat16 && prefers_bfloat16_pairs();
    few_rows_product({.form = pairs ? FewRowsForm::kQ8Pairs : FewRowsForm::kQ8,
                      .x_dtype = dtype,
                      .y_dtype = dtype,
                      .n = n,
                      .out = w.out,
                      .k = w.in,
                      .x = x,
                      .ldx = ldx,
                      .w = w.blocks,
                      .w_stride = stride,
                      .y = y,
                      .ldy = ldy,
                      .alpha = 1,
                      .beta = static_cast<float>(beta)});
    return;
  }
  const int64_t rows =
      std::min(w.out, lines_at_a_time(w.in * size_of(dtype), kDecodedBytes, kUnitLines));
  const Scratch decoded(std::max<int64_t>(1, rows * w.in * size_of(dtype)));
  for (int64_t row = 0; row < w.out; row += rows) {
    const int64_t count = std::min(rows, w.out - row);
    decode_q8_0(dtype, count, w.in, static_cast<const char*>(w.blocks) + row * stride, stride,
                decoded.get(), w.in);
    gemm({.dtype = dtype,
          .c_dtype = dtype,
          .trans_b = true,
          .m = n,
          .n = count,
          .k = w.in,
          .lda = ldx,
          .ldb = w.in,
          .beta = beta,
          .ldc = ldy},
         x, decoded.get(), const_cast<char*>(q8_at(y, dtype, row)));
  }
}

void gemm_q8_0_backward(DType dtype,
                        int64_t n,
                        const Q8Matrix& w,
                        const void* dy,
                        int64_t ld_dy,
                        void* dx,
                        int64_t ld_dx) {
  assert(w.in % kQ8Block == 0);
  // Each part of dx takes all of dy: parts are not narrow, however many rows W has.
  constexpr int64_t kLeastColumns = 256;
  const int64_t stride = q8_0_row_bytes(w.in);
  const int64_t columns =
      std::min(w.in, lines_at_a_time(w.out * size_of(dtype), kDecodedBytes, kLeastColumns));
  const Scratch decoded(std::max<int64_t>(1, columns * w.out * size_of(dtype)));
  for (int64_t column = 0; column < w.in; column += columns) {
    const int64_t count = std::min(columns, w.in - column);
    decode_q8_0(dtype, w.out, count, static_cast<const char*>(w.blocks) + q8_0_row_bytes(column),
                stride, decoded.get(), count);
    gemm({.dtype = dtype,
          .c_dtype = dtype,
          .m = n,
          .n = count,
          .k = w.out,
          .lda = ld_dy,
          .ldb = count,
          .ldc = ld_dx},
         dy, decoded.get(), const_cast<char*>(q8_at(dx, dtype, column)));
  }
}

}  // namespace tapestry::kernels
