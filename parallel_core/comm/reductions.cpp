// All-reduce and reduce-scatter.
#include <algorithm>
#include <utility>

#include "parallel_core/comm/collectives.h"
#include "parallel_core/comm/group_operation.h"
#include "parallel_core/comm/ordered_reduce.h"

namespace tapestry {

namespace {

// Every rank sends the whole tensor to every other, and all reduce everything.
class SmallAllReduce final : public ScheduledOperation {
 public:
  SmallAllReduce(const Label& label, const Members& members, const Tensor& tensor)
      : ScheduledOperation(
            label, members, make_exchange(members.size(), members.rank), Background::kNo),
        tensor_(tensor),
        scratch_(comm_scratch(tensor_.bytes() * size())),
        order_(reduce_order(label.reduce_op, tensor.dtype(), size())) {}

 private:
  Place outgoing(int /*to*/, int /*part*/) override { return {tensor_.at(0), tensor_.bytes()}; }
  Place incoming(int from, int /*part*/) override {
    return {scratch_->data() + from * tensor_.bytes(), tensor_.bytes()};
  }
  void advance(Communicator& /*communicator*/) override {
    if (!scratch_) {
      return;
    }
    std::vector<const void*> inputs;
    inputs.reserve(static_cast<size_t>(size()));
    for (int r = 0; r < size(); ++r) {
      inputs.push_back(r == rank() ? tensor_.at(0) : incoming(r, 0).data);
    }
    ordered_reduce(label().reduce_op, tensor_.dtype(), tensor_.numel(), inputs, tensor_.at(0),
                   order_);
    scratch_.reset();
  }

  TensorBytes tensor_;
  Ref<Storage> scratch_;
  ReduceOrder order_;
};

class DirectReduction final : public ScheduledOperation {
 public:
  // All-reduce if `output` is `input`.
  DirectReduction(const Label& label,
                  const Members& members,
                  const Tensor& output,
                  const Tensor& input,
                  const DirectLayout& layout,
                  bool all_reduce)
      : ScheduledOperation(label, members, make_direct_reduce(layout, members.rank, all_reduce)),
        layout_(layout),
        all_reduce_(all_reduce),
        output_(output),
        input_(input),
        order_(reduce_order(label.reduce_op, input.dtype(), size())) {
    slot_bytes_ = std::min(layout.segment, std::max<int64_t>(1, layout.piece)) * input_.element();
    const int64_t slots = std::min<int64_t>(kWindow, layout.segments(rank()));
    scratch_ = comm_scratch(slots * size() * slot_bytes_);
    if (size() == 1) {
      copy_bytes(output_.at(0), input_.at(0), input_.bytes());
    }
  }

 private:
  std::byte* slot(int64_t segment, int rank) const {
    return scratch_->data() + (segment % kWindow * size() + rank) * slot_bytes_;
  }
  Place in_tensor(const TensorBytes& tensor, int piece, int64_t segment) const {
    return {tensor.at(layout_.first(piece, segment)),
            layout_.count(piece, segment) * tensor.element()};
  }
  Place outgoing(int to, int part) override {
    return DirectLayout::is_contribution(part) ? in_tensor(input_, to, part / 2)
                                               : in_tensor(output_, rank(), part / 2);
  }
  Place incoming(int from, int part) override {
    if (!DirectLayout::is_contribution(part)) {
      return in_tensor(output_, from, part / 2);
    }
    return {slot(part / 2, from), layout_.count(rank(), part / 2) * input_.element()};
  }
  void reduce(int64_t segment) override {
    const int64_t first = layout_.first(rank(), segment);
    std::vector<const void*> inputs;
    inputs.reserve(static_cast<size_t>(size()));
    for (int r = 0; r < size(); ++r) {
      inputs.push_back(r == rank() ? input_.at(first) : slot(segment, r));
    }
    ordered_reduce(label().reduce_op, input_.dtype(), layout_.count(rank(), segment), inputs,
                   output_.at(all_reduce_ ? first : first - layout_.begin(rank())), order_);
  }

  DirectLayout layout_;
  bool all_reduce_;
  TensorBytes output_;
  TensorBytes input_;
  int64_t slot_bytes_ = 0;
  Ref<Storage> scratch_;
  ReduceOrder order_;
};

class ChainReduction final : public ScheduledOperation {
 public:
  // All-reduce if `output` is `input`.
  ChainReduction(const Label& label,
                 const Members& members,
                 const Tensor& output,
                 const Tensor& input,
                 const ChainLayout& layout)
      : ScheduledOperation(label, members, make_chain_reduce(layout, members.size(), members.rank)),
        layout_(layout),
        all_reduce_(layout.pieces == 1),
        output_(output),
        input_(input),
        carried_(carried_dtype(input.dtype())) {
    const int64_t slots = std::min<int64_t>(kWindow, layout.segments());
    slot_elements_ = layout.segments() > 0 ? layout.count(0) : 0;
    if (rank() > 0) {
      sums_ = comm_scratch(slots * slot_elements_ * size_of(carried_));
    }
    if ((is_last() && !all_reduce_) || (rank() == 1 && carried_ != input_.dtype())) {
      uncarried_ = comm_scratch(slots * slot_elements_ * input_.element());
    }
  }

 private:
  bool is_last() const { return rank() == size() - 1; }
  // Rank 0 sends its contribution as it is.
  DType sum_dtype_from(int rank) const { return rank == 0 ? input_.dtype() : carried_; }
  std::byte* sum(int64_t segment) const {
    return sums_->data() + segment % kWindow * slot_elements_ * size_of(carried_);
  }
  std::byte* uncarried(int64_t segment) const {
    return uncarried_->data() + segment % kWindow * slot_elements_ * input_.element();
  }
  // What comes from the rank before.
  std::byte* sum_before(int64_t segment) const {
    return sum_dtype_from(rank() - 1) == carried_ ? sum(segment) : uncarried(segment);
  }
  std::byte* total(int64_t segment) const {
    return all_reduce_ ? output_.at(layout_.first(segment)) : uncarried(segment);
  }
  std::byte* total_of_share(int64_t share) const {
    const int64_t segment = share / layout_.shares_per_segment;
    return total(segment) +
           (layout_.first_of_share(share) - layout_.first(segment)) * input_.element();
  }
  // Of the output, which is the whole tensor in an all-reduce.
  Place result(int64_t index) const {
    if (all_reduce_) {
      return {output_.at(layout_.first(index)), layout_.count(index) * output_.element()};
    }
    const int64_t first = layout_.first_of_share(index) - layout_.owner(index) * layout_.piece;
    return {output_.at(first), layout_.count_of_share(index) * output_.element()};
  }
  Place outgoing(int /*to*/, int part) override {
    const int64_t index = part / 2;
    if (ChainLayout::is_sum(part)) {
      void* data = rank() == 0 ? input_.at(layout_.first(index)) : sum(index);
      return {data, layout_.count(index) * size_of(sum_dtype_from(rank()))};
    }
    if (all_reduce_) {
      return result(index);
    }
    return {total_of_share(index), layout_.count_of_share(index) * input_.element()};
  }
  Place incoming(int from, int part) override {
    const int64_t index = part / 2;
    if (!ChainLayout::is_sum(part)) {
      return result(index);
    }
    return {sum_before(index), layout_.count(index) * size_of(sum_dtype_from(from))};
  }
  void reduce(int64_t segment) override {
    const DType before = sum_dtype_from(rank() - 1);
    const DType after = is_last() ? input_.dtype() : carried_;
    reduce_step(label().reduce_op, input_.dtype(), layout_.count(segment), sum_before(segment),
                before, input_.at(layout_.first(segment)),
                is_last() ? total(segment) : sum(segment), after);
    if (!is_last() || all_reduce_) {
      return;
    }
    const int64_t first = segment * layout_.shares_per_segment;
    const int64_t end = std::min(layout_.shares(), first + layout_.shares_per_segment);
    for (int64_t share = first; share < end; ++share) {
      if (layout_.owner(share) == rank()) {
        const Place own = result(share);
        copy_bytes(own.data, total_of_share(share), own.bytes);
      }
    }
  }

  ChainLayout layout_;
  bool all_reduce_;
  TensorBytes output_;
  TensorBytes input_;
  DType carried_;
  int64_t slot_elements_ = 0;
  Ref<Storage> sums_;
  Ref<Storage> uncarried_;  // in the tensor's dtype: what rank 1 gets, what the last rank scatters
};

// Rank 0 gets everybody's contribution, and all get the sum.
class TreeAllReduce final : public ScheduledOperation {
 public:
  TreeAllReduce(const Label& label, const Members& members, const Tensor& tensor)
      : ScheduledOperation(
            label, members, make_tree_gather_and_broadcast(members.size(), members.rank)),
        tree_{size(), rank()},
        tensor_(tensor),
        scratch_(comm_scratch(tree_.subtree() * tensor_.bytes())),
        order_(reduce_order(label.reduce_op, tensor.dtype(), size())) {
    copy_bytes(scratch_->data(), tensor_.at(0), tensor_.bytes());
  }

 private:
  std::byte* contribution(int from) const {
    return scratch_->data() + (from - rank()) * tensor_.bytes();
  }
  Place outgoing(int /*to*/, int part) override {
    return part == Tree::kUp ? Place{scratch_->data(), tree_.subtree() * tensor_.bytes()}
                             : Place{tensor_.at(0), tensor_.bytes()};
  }
  Place incoming(int from, int part) override {
    return part == Tree::kUp
               ? Place{contribution(from), Tree{size(), from}.subtree() * tensor_.bytes()}
               : Place{tensor_.at(0), tensor_.bytes()};
  }
  void reduce(int64_t /*segment*/) override {
    std::vector<const void*> inputs;
    inputs.reserve(static_cast<size_t>(size()));
    for (int r = 0; r < size(); ++r) {
      inputs.push_back(contribution(r));
    }
    ordered_reduce(label().reduce_op, tensor_.dtype(), tensor_.numel(), inputs, tensor_.at(0),
                   order_);
  }

  Tree tree_;
  TensorBytes tensor_;
  Ref<Storage> scratch_;
  ReduceOrder order_;
};

std::shared_ptr<Operation> make_direct_all_reduce(const Label& label,
                                                  const Members& members,
                                                  const Tensor& tensor) {
  const int ranks = members.size();
  return std::make_shared<DirectReduction>(
      label, members, tensor, tensor,
      DirectLayout::all_reduce(ranks, tensor.numel(), size_of(tensor.dtype())), true);
}

// Whether one rank gets all contributions to a piece at hand: in small groups, and where they are
// not taken in the order of the ranks.
bool is_direct(const Label& label, DType dtype, int ranks) {
  return ranks <= kMostDirect || reduce_order(label.reduce_op, dtype, ranks) == ReduceOrder::kTree;
}

}  // namespace

std::shared_ptr<Operation> make_all_reduce(const Label& label,
                                           const Members& members,
                                           const Tensor& tensor) {
  const int ranks = members.size();
  const int64_t bytes = tensor.numel() * size_of(tensor.dtype());
  if (ranks <= kMostDirect) {
    if (bytes <= kSmallDirectAllReduce) {
      return std::make_shared<SmallAllReduce>(label, members, tensor);
    }
    return make_direct_all_reduce(label, members, tensor);
  }
  if (bytes <= kSmallTreeAllReduce) {
    return std::make_shared<TreeAllReduce>(label, members, tensor);
  }
  if (is_direct(label, tensor.dtype(), ranks)) {
    return make_direct_all_reduce(label, members, tensor);
  }
  return std::make_shared<ChainReduction>(
      label, members, tensor, tensor,
      ChainLayout::all_reduce(ranks, tensor.numel(), size_of(tensor.dtype())));
}

std::shared_ptr<Operation> make_reduce_scatter(const Label& label,
                                               const Members& members,
                                               const Tensor& output,
                                               const Tensor& input) {
  const int ranks = members.size();
  if (is_direct(label, input.dtype(), ranks)) {
    return std::make_shared<DirectReduction>(
        label, members, output, input,
        DirectLayout::reduce_scatter(ranks, input.numel(), size_of(input.dtype())), false);
  }
  return std::make_shared<ChainReduction>(
      label, members, output, input,
      ChainLayout::reduce_scatter(ranks, input.numel(), size_of(input.dtype())));
}

}  // namespace tapestry
