// The rows of a micro-batch with those of a leaf side by side, for ops that take rows in chunks.
#pragma once

#include <cstdint>

#include "autograd/tensor/tensor.h"

namespace tapestry {

/// Rows of activations in the order of samples and of the leaves of their sequences, as
/// exact_tokens() has them (kernels/machine/exact.h).
struct LeafOrder {
  Tensor rows;            ///< int64: which row stands at each place; undefined: as they are
  int64_t leaf_rows = 1;  ///< rows of each leaf
  int64_t run_rows = 1;   ///< of each run of its sum, as token_runs() has them (exact_runs.h)

  /// x [rows, ..] or [rows] in this order, contiguous, and back. Not recorded.
  Tensor apply(const Tensor& x) const;
  Tensor undo(const Tensor& x) const;
};

/// Of so many rows. Where these are not the tokens of exact_tokens(), each is a leaf of its own.
LeafOrder leaf_order(int64_t rows);

}  // namespace tapestry
