#include "autograd/kernels/gemm/gemm_quantized.h"

#include <algorithm>
#include <cassert>
#include <vector>

#include "autograd/kernels/gemm/gemm.h"
#include "autograd/kernels/gemm/gemm_few_rows.h"
#include "autograd/kernels/gemm/gemm_one_order.h"
#include "autograd/kernels/gemm/gemm_tiled.h"
#include "autograd/kernels/gemm/products_by_size.h"
#include "autograd/kernels/gemm/quantized_blocks.h"
#include "autograd/kernels/machine/ceil_div.h"
#include "autograd/kernels/machine/exact.h"
#include "autograd/kernels/machine/one_order.h"
#include "autograd/kernels/machine/scratch.h"
#include "autograd/kernels/machine/work_counter.h"

namespace tapestry::kernels {

namespace {

/// What is decoded at a time: it stays in the last-level cache until it is multiplied.
constexpr int64_t kDecodedBytes = int64_t{4} << 20;
/// Decoding for fewer rows of x takes longer than to multiply with the blocks as they lie.
constexpr int64_t kMostFewRows = 64;
constexpr int64_t kUnitLines = 64;

const char* element_at(const void* x, DType dtype, int64_t elements) {
  return static_cast<const char*>(x) + elements * size_of(dtype);
}

FewRowsForm block_form(BlockFormat format, DType dtype) {
  const bool pairs = dtype == kBFloat16 && prefers_bfloat16_pairs();
  if (format == BlockFormat::kQ8_0) {
    return pairs ? FewRowsForm::kQ8Pairs : FewRowsForm::kQ8;
  }
  return pairs ? FewRowsForm::kQ4Pairs : FewRowsForm::kQ4;
}

int64_t lines_at_a_time(int64_t line_bytes, int64_t bytes, int64_t least) {
  const int64_t lines = std::max(least, bytes / std::max<int64_t>(1, line_bytes));
  return lines / kUnitLines * kUnitLines;
}

}  // namespace

void gemm_quantized(DType dtype,
                    int64_t n,
                    const BlockMatrix& w,
                    const void* x,
                    int64_t ldx,
                    double beta,
                    void* y,
                    int64_t ldy) {
  assert(w.in % kBlockNumbers == 0);
  if (n == 0 || w.out == 0) {
    return;
  }
  const int64_t stride = block_row_bytes(w.format, w.in);
  if ((n <= kMostFewRows || in_one_order()) && w.in > 0 && !in_exact()) {
    const CountedWork work(2.0 * static_cast<double>(n) * static_cast<double>(w.out) *
                           static_cast<double>(w.in));
    const auto multiply = in_one_order() ? &one_order_product : &few_rows_product;
    multiply({.form = block_form(w.format, dtype),
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
    decode_blocks(w.format, dtype, count, w.in, static_cast<const char*>(w.blocks) + row * stride,
                  stride, decoded.get(), w.in);
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
         x, decoded.get(), const_cast<char*>(element_at(y, dtype, row)));
  }
}

void gemm_quantized_backward(DType dtype,
                             int64_t n,
                             const BlockMatrix& w,
                             const void* dy,
                             int64_t ld_dy,
                             void* dx,
                             int64_t ld_dx) {
  assert(w.in % kBlockNumbers == 0);
  // Each part of dx takes all of dy: parts are not narrow, however many rows W has.
  constexpr int64_t kLeastColumns = 256;
  const int64_t stride = block_row_bytes(w.format, w.in);
  const int64_t columns =
      std::min(w.in, lines_at_a_time(w.out * size_of(dtype), kDecodedBytes, kLeastColumns));
  const Scratch decoded(std::max<int64_t>(1, columns * w.out * size_of(dtype)));
  for (int64_t column = 0; column < w.in; column += columns) {
    const int64_t count = std::min(columns, w.in - column);
    decode_blocks(w.format, dtype, w.out, count,
                  static_cast<const char*>(w.blocks) + block_row_bytes(w.format, column), stride,
                  decoded.get(), count);
    gemm({.dtype = dtype,
          .c_dtype = dtype,
          .m = n,
          .n = count,
          .k = w.out,
          .lda = ld_dy,
          .ldb = count,
          .ldc = ld_dx},
         dy, decoded.get(), const_cast<char*>(element_at(dx, dtype, column)));
  }
}

namespace {

/// The rows of a group and its number.
struct GroupRows {
  int64_t group;
  int64_t begin;
  int64_t count;
};

/// Calls multiply(rows, matrix) for each group that has rows.
template <class Multiply>
void for_groups(std::span<const int64_t> ends, const BlockMatrix& w, const Multiply& multiply) {
  // As long as reading the matrix takes, it can be multiplied with about so many rows.
  constexpr int64_t kFree = 8;
  std::vector<GroupRows> groups;
  int64_t begin = 0;
  for (size_t e = 0; e < ends.size(); ++e) {
    assert(begin <= ends[e]);
    if (begin < ends[e]) {
      groups.push_back({static_cast<int64_t>(e), begin, ends[e] - begin});
    }
    begin = ends[e];
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [](const auto& a, const auto& b) { return a.count > b.count; });
  const CountedWork work(2.0 * static_cast<double>(begin) * static_cast<double>(w.out) *
                         static_cast<double>(w.in));
  const int64_t bytes = w.out * block_row_bytes(w.format, w.in);
  const auto at = [&](int64_t i) -> const GroupRows& { return groups[static_cast<size_t>(i)]; };
  for_products_by_size(
      static_cast<int64_t>(groups.size()),
      [&](int64_t i) { return static_cast<double>(std::max(at(i).count, kFree)); },
      [&](int64_t i) {
        const GroupRows& rows = at(i);
        BlockMatrix own = w;
        own.blocks = static_cast<const char*>(w.blocks) + rows.group * bytes;
        multiply(rows, own);
      });
}

}  // namespace

void grouped_gemm_quantized(DType dtype,
                            std::span<const int64_t> ends,
                            const BlockMatrix& w,
                            const void* x,
                            int64_t ldx,
                            double beta,
                            void* y,
                            int64_t ldy) {
  for_groups(ends, w, [&](const GroupRows& rows, const BlockMatrix& own) {
    gemm_quantized(dtype, rows.count, own, element_at(x, dtype, rows.begin * ldx), ldx, beta,
                   const_cast<char*>(element_at(y, dtype, rows.begin * ldy)), ldy);
  });
}

void grouped_gemm_quantized_backward(DType dtype,
                                     std::span<const int64_t> ends,
                                     const BlockMatrix& w,
                                     const void* dy,
                                     int64_t ld_dy,
                                     void* dx,
                                     int64_t ld_dx) {
  for_groups(ends, w, [&](const GroupRows& rows, const BlockMatrix& own) {
    gemm_quantized_backward(dtype, rows.count, own, element_at(dy, dtype, rows.begin * ld_dy),
                            ld_dy, const_cast<char*>(element_at(dx, dtype, rows.begin * ld_dx)),
                            ld_dx);
  });
}

}  // namespace tapestry::kernels
