// Rows of a tensor that change ranks, any number of them from each: what takes tokens to the ranks
// that have their experts, and back.
//
// x is [R, ...], floating; a row is everything behind the first axis and has the same size on every
// rank. R may differ between ranks and be 0: such a rank communicates like all others, and records
// its node, so that it does the same in backward. Each rank of the group calls the same functions
// in the same order, and differentiates them in the same order. In a group of one they return x
// itself. Values travel as they are, NaN included. Differentiable any number of times. In a
// RecomputeScope their results are kept.
//
// | function            | forward                       | backward: dy -> dx              |
// |---------------------|-------------------------------|---------------------------------|
// | all_to_all_rows     | rows to the ranks they are for| their gradients back to the rows|
// | gather_rows         | all ranks' rows, on each      | reduce_scatter_rows             |
// | reduce_scatter_rows | this rank's rows of the sum   | gather_rows                     |
//
// Every message is part of an all-to-all of the group, whose CommunicationStats count what a rank
// hands over, that to itself included: of all_to_all_rows and reduce_scatter_rows the bytes of x,
// of gather_rows as many times those as there are ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel_core/comm/process_group.h"

namespace tapestry {

using RowCounts = std::vector<int64_t>;

/// Sends send_counts[r] rows to rank r, one piece after the other, and returns the rows that came,
/// receive_counts[r] of them from rank r, in the order of the ranks. What rank a sends to rank b is
/// what b receives from a. The gradient's way back is under way while other nodes run: it is waited
/// for where it is first touched. ValueError for x without axes, counts that are negative or not as
/// many as the group has ranks, or send counts that do not sum to R.
Tensor all_to_all_rows(const Tensor& x,
                       const RowCounts& send_counts,
                       const RowCounts& receive_counts,
                       ProcessGroup& group);

/// The rows of all ranks, counts[r] of rank r, in the order of the ranks; each rank makes a use of
/// its own of them. x has counts[own rank] rows. ValueError as above.
Tensor gather_rows(const Tensor& x, const RowCounts& counts, ProcessGroup& group);

/// The sum over the ranks of x, of which this rank gets its counts[own rank] rows: those of rank r
/// lie in the order of the ranks. Summed in the order of the ranks, of 16-bit values in float32 and
/// rounded once; in exact mode as a balanced tree of neighbours. ValueError as above.
Tensor reduce_scatter_rows(const Tensor& x, const RowCounts& counts, ProcessGroup& group);

/// all_to_all_rows in two halves, between which other work hides the messages, in forward and in
/// backward: nodes that are made in between run between the start of the gradient's way back and
/// its first use.
class PendingRows {
 public:
  /// Sends what there is. Errors as all_to_all_rows.
  PendingRows(const Tensor& x,
              RowCounts send_counts,
              RowCounts receive_counts,
              ProcessGroup& group);
  /// Waits, and returns the rows that came, with their node. To be called once, on every rank.
  Tensor finish();

 private:
  Tensor x_;
  RowCounts send_counts_;
  RowCounts receive_counts_;
  ProcessGroup* group_;
  Tensor rows_;
  WorkHandle work_;
};

}  // namespace tapestry
