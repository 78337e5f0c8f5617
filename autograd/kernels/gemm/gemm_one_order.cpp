#include "autograd/kernels/gemm/gemm_one_order.h"

#include <algorithm>
#include <cassert>

#include "autograd/kernels/machine/ceil_div.h"
#include "autograd/kernels/machine/one_order.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/kernels/machine/scratch.h"

namespace tapestry::kernels {

namespace {

/// Rows of x, as the kernels have them, that meet all of W together.
constexpr int64_t kRowsBytes = 384 << 10;
/// No fewer: a row of W that is read from the last-level cache or from memory meets so many.
constexpr int64_t kFewestRowsOfBlock = 24;
/// No more: sums of a stripe of W for all rows are in the first-level cache.
constexpr int64_t kMostRowsOfBlock = 96;

/// to [rows, columns] = the transpose of from, whose rows are ld apart.
template <class T>
void copy_transposed(int64_t rows, int64_t columns, const T* from, int64_t ld, T* to) {
  constexpr int64_t kTile = 32;
  parallel_for(ceil_div(rows, kTile), std::max<int64_t>(1, kGrainSize / (kTile * columns)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t row = begin * kTile; row < std::min(rows, end * kTile);
                      row += kTile) {
                   const int64_t last = std::min(rows, row + kTile);
                   for (int64_t j = 0; j < columns; ++j) {
                     for (int64_t i = row; i < last; ++i) {
                       to[i * columns + j] = from[j * ld + i];
                     }
                   }
                 }
               });
}

/// An operand [rows, k] with neighbouring elements of a row side by side.
class RowsOf {
 public:
  RowsOf(DType dtype, bool transposed, int64_t rows, int64_t k, const void* from, int64_t ld)
      : data_(from), ld_(ld) {
    if (!transposed) {
      return;
    }
    copy_ = Scratch(rows * k * size_of(dtype));
    if (dtype == kFloat32) {
      copy_transposed(rows, k, static_cast<const float*>(from), ld,
                      static_cast<float*>(copy_.get()));
    } else {
      copy_transposed(rows, k, static_cast<const uint16_t*>(from), ld,
                      static_cast<uint16_t*>(copy_.get()));
    }
    data_ = copy_.get();
    ld_ = k;
  }
  const void* data() const { return data_; }
  int64_t ld() const { return ld_; }

 private:
  Scratch copy_;
  const void* data_;
  int64_t ld_;
};

}  // namespace

bool wants_one_order(const GemmShape& s) {
  return in_one_order() && most_few_rows(s.dtype) > 0 && s.k > 0 && s.alpha != 0;
}

void one_order_gemm(const GemmShape& s, const void* a, const void* b, void* c) {
  assert(s.m > 0 && s.n > 0 && s.k > 0);
  const RowsOf x(s.dtype, s.trans_a, s.m, s.k, a, s.lda);
  const RowsOf w(s.dtype, !s.trans_b, s.n, s.k, b, s.ldb);
  GemmShape own = s;
  own.trans_a = false;
  own.trans_b = true;
  own.lda = x.ld();
  own.ldb = w.ld();
  one_order_product(few_rows_of(own, x.data(), w.data(), c));
}

void one_order_product(const FewRowsProduct& all) {
  const int64_t most =
      std::clamp(kRowsBytes / std::max<int64_t>(1, all.k * few_rows_item_bytes(all.form)),
                 kFewestRowsOfBlock, kMostRowsOfBlock);
  const int64_t threads = in_team() ? 1 : num_threads();
  // Threads have rows of their own where there are enough of them, else columns.
  const bool by_rows = threads == 1 || all.n >= threads * kFewestRowsOfBlock;
  const int64_t blocks =
      ceil_div(ceil_div(all.n, most), by_rows ? threads : 1) * (by_rows ? threads : 1);
  const auto multiply_block = [&](int64_t block) {
    const int64_t first = all.n * block / blocks;
    FewRowsProduct own = all;
    own.n = all.n * (block + 1) / blocks - first;
    own.x = static_cast<const char*>(all.x) + first * all.ldx * size_of(all.x_dtype);
    own.y = static_cast<char*>(all.y) + first * all.ldy * size_of(all.y_dtype);
    if (own.n > 0) {
      few_rows_product(own);
    }
  };
  if (!by_rows) {
    for (int64_t block = 0; block < blocks; ++block) {
      multiply_block(block);
    }
    return;
  }
  parallel_for(blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      multiply_block(block);
    }
  });
}

}  // namespace tapestry::kernels
