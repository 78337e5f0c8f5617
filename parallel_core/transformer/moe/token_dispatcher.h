// Rows of tokens to the ranks that have their experts, and back.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "autograd/ops/transformer/moe_permute.h"
#include "autograd/tensor/tensor.h"
#include "parallel_core/comm/process_group.h"
#include "parallel_core/tensor_parallel/row_collectives.h"
#include "parallel_core/transformer/moe/expert_product.h"

namespace tapestry {

/// One passage of a rank's rows through experts that are spread over ranks: an all-to-all over the
/// ranks with other experts (ep), a gather over those with other slices of the same ones (etp), a
/// sort by expert; and the reverse. All ranks of both groups make the same calls in the same order,
/// however many rows they have.
///
/// What crosses ep is the rows, once each way, and the counts of rows, [E] int64 from each rank.
/// Gradients go the same ways. Source: Lepikhin et al. 2020, arXiv:2006.16668, section 3; slices as
/// in Liu et al. 2025, arXiv:2504.14960.
class TokenDispatcher {
 public:
  /// Sends `rows` [R, H], sorted by expert, counts[e] of them for expert e of all E, which the
  /// ranks of ep share evenly. With `leaves` above 0 (ExpertRows) an expert has so many counts, of
  /// one leaf after the other, the same number on all ranks. ValueError unless the counts sum to R.
  TokenDispatcher(const Tensor& rows, const std::vector<int64_t>& counts, int64_t leaves = 0);

  /// Waits for the rows of the rank's own experts, and returns them sorted by expert; `wide`: in
  /// float32 from there on, in which their gradients are then summed over slices. Once.
  Tensor dispatched(bool wide = false);
  /// The rows of each of the rank's experts, [E/ep], with their leaves if there are.
  const ExpertRows& expert_rows() const { return expert_rows_; }

  /// What the rank's slices of the experts make of dispatched() -> the sum over all slices, of the
  /// rows that came over ep.
  Tensor reduced(const Tensor& y) const;
  /// The expert of each row of reduced(), counted from the rank's first.
  std::vector<int64_t> expert_of_row() const;

  /// reduced() -> what the experts make of `rows`, in the order of these.
  Tensor combined(const Tensor& y) const;

 private:
  void exchange_counts(const std::vector<int64_t>& counts);
  void make_order();
  void find_leaves();

  ProcessGroup& experts_;
  ProcessGroup& slices_;
  int64_t leaves_;                 // counts of an expert, at least 1
  int64_t local_;                  // experts of this rank
  RowCounts send_;                 // rows to each rank of ep
  RowCounts receive_;              // and from it
  std::vector<int64_t> received_;  // [ep * local * leaves]: from each rank, to each of the experts
  RowCounts slice_rows_;           // received by each rank of etp
  std::vector<int64_t> all_received_;  // [etp * ep * local * leaves]
  ExpertRows expert_rows_;
  RowMap order_;  // of the rows that came; empty: they are in order
  std::optional<PendingRows> pending_;
};

}  // namespace tapestry
