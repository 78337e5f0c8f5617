// The collectives as messages between ranks. The same for all transports, so the same bits. What is
// sent when is in schedule.h.
//
// Reductions take the ranks' contributions in rank order, in exact mode as a balanced tree (see
// reduce_order()), for which one rank has all contributions to a piece at hand. In groups of up to
// kMostDirect ranks each reduces one piece and sends the result round; a small tensor goes to every
// rank whole, which saves a round. In larger ones the sums travel along a chain, those of a small
// tensor through a tree. All-gather: directly, in larger groups round a ring or, of small pieces,
// through the tree. All-to-all sends directly; broadcast goes down a binomial tree; a barrier is
// the dissemination of Hensgen, Finkel and Manber 1988.
#pragma once

#include <memory>
#include <vector>

#include "autograd/tensor/tensor.h"
#include "parallel_core/comm/communicator.h"

namespace tapestry {

/// Who takes part, by ranks of the world, and which of them is the caller. Operations share the
/// list: in a group of thousands it is longer than most messages.
struct Members {
  std::shared_ptr<const std::vector<int>> world_ranks;
  int rank = 0;
  bool ascending = false;  ///< the list is

  int size() const { return static_cast<int>(world_ranks->size()); }
};

// Each checks nothing: the caller has (see CommunicatorGroup). The tensors are kept until the end.
std::shared_ptr<Operation> make_all_reduce(const Label& label,
                                           const Members& members,
                                           const Tensor& tensor);
std::shared_ptr<Operation> make_reduce_scatter(const Label& label,
                                               const Members& members,
                                               const Tensor& output,
                                               const Tensor& input);
std::shared_ptr<Operation> make_all_gather(const Label& label,
                                           const Members& members,
                                           const Tensor& output,
                                           const Tensor& input);
/// `root` is a rank of the group.
std::shared_ptr<Operation> make_broadcast(const Label& label,
                                          const Members& members,
                                          const Tensor& tensor,
                                          int root);
std::shared_ptr<Operation> make_all_to_all(const Label& label,
                                           const Members& members,
                                           const Tensor& output,
                                           const Tensor& input,
                                           const std::vector<int64_t>& output_counts,
                                           const std::vector<int64_t>& input_counts);
/// The label's root is the other side.
std::shared_ptr<Operation> make_send(const Label& label, const Tensor& tensor);
std::shared_ptr<Operation> make_receive(const Label& label, const Tensor& tensor);
std::shared_ptr<Operation> make_barrier(const Label& label, const Members& members);

}  // namespace tapestry
