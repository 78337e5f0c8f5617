// Logits of a head a chunk of rows at a time, for ops that never hold all of them. Nothing here is
// recorded.
#pragma once

#include <algorithm>
#include <cstdint>

#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "autograd/tensor/tensor.h"

namespace tapestry {

/// Rows [begin, end) of a contiguous tensor seen as rows of `columns` elements.
Tensor rows_between(const Tensor& t, int64_t columns, int64_t begin, int64_t end);
Tensor entries_between(const Tensor& t, int64_t begin, int64_t end);

void fill_with_zeros(const Tensor& t);

/// out = a b (beta 0) or out += a b (beta 1) for contiguous matrices, where trans_* says that one
/// is stored as its transpose.
void multiply_into(
    const Tensor& a, bool trans_a, const Tensor& b, bool trans_b, double beta, const Tensor& out);

/// Memory for the logits of a chunk.
inline Tensor logits_space(int64_t rows, int64_t chunk_rows, int64_t vocabulary, DType dtype) {
  const MemoryKindGuard kind(MemoryKind::kWorkspace);
  return empty({std::min(rows, chunk_rows), vocabulary}, dtype);
}

/// Calls f(logits, begin, end) for the chunks of x w^T, x [.., H] and w [V, H] contiguous.
template <class F>
void for_chunks(const Tensor& x, const Tensor& w, int64_t count, int64_t chunk_rows, const F& f) {
  const int64_t h = x.shape().back();
  const int64_t vocabulary = w.shape()[0];
  const MemoryKindGuard kind(MemoryKind::kWorkspace);
  const Tensor space = logits_space(count, chunk_rows, vocabulary, x.dtype());
  for (int64_t begin = 0; begin < count; begin += chunk_rows) {
    const int64_t end = std::min(count, begin + chunk_rows);
    const Tensor logits = rows_between(space, vocabulary, 0, end - begin);
    multiply_into(rows_between(x, h, begin, end), false, w, true, 0, logits);
    f(logits, begin, end);
  }
}

/// What is made of the products before a loss sees them: soft_cap(products, scale, cap).
struct LogitForm {
  double scale = 1;
  double cap = 0;  ///< 0: none

  bool is_plain() const { return scale == 1 && cap == 0; }

  /// In the place of the products; gives what the gradient of the result is to be multiplied by, in
  /// the wide dtype, or nothing for 1.
  Tensor apply_to(const Tensor& products) const;
  /// The gradient of the products in the place of that of the result.
  static void pull_back(const Tensor& gradient, const Tensor& factor);
};

}  // namespace tapestry
