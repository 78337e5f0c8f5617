// Collectives along one axis of a tensor. None of them is recorded; mappings.h has the ops.
#pragma once

#include "parallel_core/comm/process_group.h"

namespace tapestry {

/// A collective that is under way.
class PendingTensor {
 public:
  PendingTensor() = default;

  /// Waits, and returns the result; contiguous. To be called once.
  Tensor wait();

 private:
  friend PendingTensor start_all_reduce(const Tensor& x, ProcessGroup& group);
  friend PendingTensor start_all_gather(const Tensor& x, int64_t axis, ProcessGroup& group);
  friend PendingTensor start_reduce_scatter(const Tensor& x, int64_t axis, ProcessGroup& group);

  WorkHandle work_;
  Tensor buffer_;
  int64_t axis_ = 0;        // of an all-gather whose pieces do not follow one another in memory
  bool in_pieces_ = false;  // buffer_ is [ranks, piece...]
};

/// The sum of all ranks' x, in x's memory if that is contiguous, else in a copy.
PendingTensor start_all_reduce(const Tensor& x, ProcessGroup& group);
/// The ranks' x one after the other along an axis.
PendingTensor start_all_gather(const Tensor& x, int64_t axis, ProcessGroup& group);
/// This rank's piece, along an axis, of the sum of all ranks' x. ValueError if the axis is not
/// divisible by the number of ranks.
PendingTensor start_reduce_scatter(const Tensor& x, int64_t axis, ProcessGroup& group);

/// This rank's piece of x along an axis: a view. ValueError as above.
Tensor piece_along(const Tensor& x, int64_t axis, const ProcessGroup& group);

}  // namespace tapestry
