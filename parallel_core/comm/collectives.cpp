#include "parallel_core/comm/collectives.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "autograd/tensor/rank_context.h"
#include "parallel_core/comm/ordered_reduce.h"

namespace tapestry {

namespace {

std::byte* at(const Tensor& tensor, int64_t element) {
  return static_cast<std::byte*>(tensor.raw()) + element * size_of(tensor.dtype());
}

// An empty tensor may have no address.
void copy_bytes(void* to, const void* from, int64_t bytes) {
  if (bytes > 0 && to != from) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
}

Ref<Storage> scratch(int64_t bytes) {
  const MemoryKindGuard kind(MemoryKind::kWorkspace);
  return make_ref<Storage>(bytes);
}

class GroupOperation : public Operation {
 protected:
  GroupOperation(const Label& label, const Members& members)
      : Operation(label), ranks_(members.world_ranks), rank_(members.rank) {}

  int size() const { return static_cast<int>(ranks_.size()); }
  int rank() const { return rank_; }
  int world_rank(int rank) const { return ranks_[static_cast<size_t>(rank)]; }
  int group_rank(int world_rank) const {
    return static_cast<int>(std::find(ranks_.begin(), ranks_.end(), world_rank) - ranks_.begin());
  }
  // Calls body(rank) for the others, each rank starting with the one after itself, so that not all
  // send to the same one first.
  template <class Body>
  void for_others(const Body& body) const {
    for (int i = 1; i < size(); ++i) {
      body((rank_ + i) % size());
    }
  }
  // What each rank has contributed: the others' in their slots.
  template <class Slot>
  std::vector<const void*> in_rank_order(const Slot& slot, const void* own) const {
    std::vector<const void*> inputs(ranks_.size(), own);
    for_others([&](int other) { inputs[static_cast<size_t>(other)] = slot(other); });
    return inputs;
  }

 private:
  std::vector<int> ranks_;
  int rank_;
};

// Every rank sends the whole tensor to every other, and all reduce everything.
class SmallAllReduce final : public GroupOperation {
 public:
  static constexpr int64_t kMaxBytes = int64_t{16} << 10U;

  SmallAllReduce(const Label& label, const Members& members, Tensor tensor)
      : GroupOperation(label, members), tensor_(std::move(tensor)) {}

 private:
  int64_t bytes() const { return tensor_.numel() * size_of(tensor_.dtype()); }
  std::byte* slot(int rank) { return scratch_->data() + rank * bytes(); }

  void start(Communicator& communicator) override {
    scratch_ = scratch(bytes() * size());
    for_others([&](int other) {
      communicator.send(*this, world_rank(other), 0, tensor_.raw(), bytes());
      communicator.receive(*this, world_rank(other), 0, slot(other), bytes());
    });
  }
  void advance(Communicator& /*communicator*/) override {
    if (!scratch_) {
      return;
    }
    const std::vector<const void*> inputs =
        in_rank_order([&](int r) { return slot(r); }, tensor_.raw());
    ordered_reduce(label().reduce_op, tensor_.dtype(), tensor_.numel(), inputs, tensor_.raw());
    scratch_.reset();
  }

  Tensor tensor_;
  Ref<Storage> scratch_;
};

// Each rank reduces the piece of the data that has its number, segment by segment: the others'
// segments come into one of a few slots, are reduced together with its own in rank order, and, in
// an all-reduce, the result goes to everybody.
class PiecewiseReduce final : public GroupOperation {
 public:
  // All-reduce of `tensor` in place.
  PiecewiseReduce(const Label& label, const Members& members, const Tensor& tensor)
      : PiecewiseReduce(label,
                        members,
                        tensor,
                        tensor,
                        (tensor.numel() + members_of(members) - 1) / members_of(members)) {
    constexpr int64_t kAlignment = 64;  // elements: whole cache lines
    piece_ = (piece_ + kAlignment - 1) / kAlignment * kAlignment;
    all_reduce_ = true;
  }
  // Reduce-scatter.
  PiecewiseReduce(const Label& label,
                  const Members& members,
                  const Tensor& output,
                  const Tensor& input)
      : PiecewiseReduce(label, members, input, output, output.numel()) {}

 private:
  static constexpr int64_t kSegmentBytes = int64_t{512} << 10U;
  static constexpr int64_t kWindow = 2;  // segments whose contributions may be on their way

  PiecewiseReduce(
      const Label& label, const Members& members, Tensor input, Tensor output, int64_t piece)
      : GroupOperation(label, members),
        input_(std::move(input)),
        output_(std::move(output)),
        piece_(piece),
        segment_(std::max<int64_t>(
            1, kSegmentBytes / size_of(input_.dtype()) / std::max(1, members_of(members) / 4))) {}

  static int members_of(const Members& members) {
    return static_cast<int>(members.world_ranks.size());
  }

  static constexpr int contribution(int64_t segment) { return static_cast<int>(2 * segment); }
  static constexpr int result(int64_t segment) { return static_cast<int>(2 * segment + 1); }

  int64_t begin(int rank) const { return std::min(input_.numel(), rank * piece_); }
  int64_t piece_size(int rank) const { return begin(rank + 1) - begin(rank); }
  int64_t segments(int rank) const { return (piece_size(rank) + segment_ - 1) / segment_; }
  int64_t first_of(int rank, int64_t segment) const { return begin(rank) + segment * segment_; }
  int64_t count_of(int rank, int64_t segment) const {
    return std::min(segment_, piece_size(rank) - segment * segment_);
  }
  int64_t bytes_of(int rank, int64_t segment) const {
    return count_of(rank, segment) * size_of(input_.dtype());
  }
  std::byte* slot(int64_t segment, int rank) {
    const int64_t number = segment % kWindow * size() + rank;
    return scratch_->data() + number * segment_ * size_of(input_.dtype());
  }

  void start(Communicator& communicator) override {
    segment_ = std::min(segment_, std::max<int64_t>(1, piece_));
    const int64_t own = std::min(kWindow, segments(rank()));
    scratch_ = scratch(own * size() * segment_ * size_of(input_.dtype()));
    missing_.assign(static_cast<size_t>(segments(rank())), size() - 1);
    for (int64_t s = 0; s < own; ++s) {
      expect(communicator, s);
    }
    for_others([&](int other) {
      for (int64_t s = 0; s < segments(other); ++s) {
        communicator.send(*this, world_rank(other), contribution(s), at(input_, first_of(other, s)),
                          bytes_of(other, s));
      }
    });
    if (size() == 1) {
      copy_bytes(output_.raw(), input_.raw(), input_.numel() * size_of(input_.dtype()));
    }
  }
  void expect(Communicator& communicator, int64_t segment) {
    for_others([&](int other) {
      communicator.receive(*this, world_rank(other), contribution(segment), slot(segment, other),
                           bytes_of(rank(), segment));
    });
  }
  void sent(Communicator& communicator, int part, int destination) override {
    const int64_t segment = part / 2;
    if (all_reduce_ && part == contribution(segment)) {
      // The result goes where the contribution was, which may be overwritten only now.
      const int other = group_rank(destination);
      communicator.receive(*this, destination, result(segment),
                           at(output_, first_of(other, segment)), bytes_of(other, segment));
    }
  }
  void received(Communicator& communicator, int part, int /*source*/) override {
    const int64_t segment = part / 2;
    if (part != contribution(segment) || --missing_[static_cast<size_t>(segment)] > 0) {
      return;
    }
    reduce(segment);
    if (all_reduce_) {
      for_others([&](int other) {
        communicator.send(*this, world_rank(other), result(segment),
                          at(output_, first_of(rank(), segment)), bytes_of(rank(), segment));
      });
    }
    if (segment + kWindow < segments(rank())) {
      expect(communicator, segment + kWindow);
    }
  }
  void reduce(int64_t segment) {
    const int64_t first = first_of(rank(), segment);
    const std::vector<const void*> inputs =
        in_rank_order([&](int r) { return slot(segment, r); }, at(input_, first));
    const int64_t out = all_reduce_ ? first : segment * segment_;
    ordered_reduce(label().reduce_op, input_.dtype(), count_of(rank(), segment), inputs,
                   at(output_, out));
  }

  Tensor input_;
  Tensor output_;
  int64_t piece_;    // elements of each rank's piece; the last ones may be shorter
  int64_t segment_;  // elements
  bool all_reduce_ = false;
  Ref<Storage> scratch_;
  std::vector<int> missing_;  // contributions to each segment of the own piece
};

class AllGather final : public GroupOperation {
 public:
  AllGather(const Label& label, const Members& members, Tensor output, Tensor input)
      : GroupOperation(label, members), output_(std::move(output)), input_(std::move(input)) {}

 private:
  void start(Communicator& communicator) override {
    const int64_t bytes = input_.numel() * size_of(input_.dtype());
    for_others([&](int other) {
      communicator.receive(*this, world_rank(other), 0, at(output_, other * input_.numel()), bytes);
      communicator.send(*this, world_rank(other), 0, input_.raw(), bytes);
    });
    copy_bytes(at(output_, rank() * input_.numel()), input_.raw(), bytes);
  }

  Tensor output_;
  Tensor input_;
};

class Broadcast final : public GroupOperation {
 public:
  Broadcast(const Label& label, const Members& members, Tensor tensor, int root)
      : GroupOperation(label, members), tensor_(std::move(tensor)), root_(root) {}

 private:
  int64_t bytes() const { return tensor_.numel() * size_of(tensor_.dtype()); }
  int from_root() const { return (rank() - root_ + size()) % size(); }
  int at_distance(int distance) const { return world_rank((root_ + distance) % size()); }

  // In the tree of distances from the root, the parent is the number without its lowest bit, and
  // the children are those with one more bit below it.
  void start(Communicator& communicator) override {
    const int own = from_root();
    if (own != 0) {
      communicator.receive(*this, at_distance(own & (own - 1)), 0, tensor_.raw(), bytes());
    }
  }
  void advance(Communicator& communicator) override {
    if (forwarded_) {
      return;
    }
    forwarded_ = true;
    const int own = from_root();
    const int limit = own == 0 ? size() : own & -own;
    for (int bit = 1; bit < limit && own + bit < size(); bit *= 2) {
      communicator.send(*this, at_distance(own + bit), 0, tensor_.raw(), bytes());
    }
  }

  Tensor tensor_;
  int root_;
  bool forwarded_ = false;
};

class AllToAll final : public GroupOperation {
 public:
  AllToAll(const Label& label,
           const Members& members,
           Tensor output,
           Tensor input,
           std::vector<int64_t> output_counts,
           std::vector<int64_t> input_counts)
      : GroupOperation(label, members),
        output_(std::move(output)),
        input_(std::move(input)),
        output_counts_(std::move(output_counts)),
        input_counts_(std::move(input_counts)) {}

 private:
  static std::vector<int64_t> starts_of(const std::vector<int64_t>& counts) {
    std::vector<int64_t> starts = {0};
    for (const int64_t count : counts) {
      starts.push_back(starts.back() + count);
    }
    return starts;
  }
  void start(Communicator& communicator) override {
    const std::vector<int64_t> to = starts_of(output_counts_);
    const std::vector<int64_t> from = starts_of(input_counts_);
    const int64_t element = size_of(input_.dtype());
    for_others([&](int other) {
      const auto o = static_cast<size_t>(other);
      communicator.receive(*this, world_rank(other), 0, at(output_, to[o]),
                           output_counts_[o] * element);
      communicator.send(*this, world_rank(other), 0, at(input_, from[o]),
                        input_counts_[o] * element);
    });
    const auto own = static_cast<size_t>(rank());
    copy_bytes(at(output_, to[own]), at(input_, from[own]), input_counts_[own] * element);
  }

  Tensor output_;
  Tensor input_;
  std::vector<int64_t> output_counts_;
  std::vector<int64_t> input_counts_;
};

class Message final : public Operation {
 public:
  Message(const Label& label, Tensor tensor) : Operation(label), tensor_(std::move(tensor)) {}

 private:
  void start(Communicator& communicator) override {
    const int64_t bytes = tensor_.numel() * size_of(tensor_.dtype());
    if (label().collective == Collective::kSend) {
      communicator.send(*this, label().root, 0, tensor_.raw(), bytes);
    } else {
      communicator.receive(*this, label().root, 0, tensor_.raw(), bytes);
    }
  }

  Tensor tensor_;
};

// In round k each rank tells the one 2^k after it and hears from the one 2^k before it.
class Barrier final : public GroupOperation {
 public:
  Barrier(const Label& label, const Members& members) : GroupOperation(label, members) {}

 private:
  void start(Communicator& /*communicator*/) override {}
  void advance(Communicator& communicator) override {
    if (distance_ < size()) {
      const int part = distance_;
      const int to = world_rank((rank() + distance_) % size());
      const int from = world_rank((rank() - distance_ + size()) % size());
      distance_ *= 2;
      communicator.send(*this, to, part, nullptr, 0);
      communicator.receive(*this, from, part, nullptr, 0);
    }
  }

  int distance_ = 1;
};

}  // namespace

std::shared_ptr<Operation> make_all_reduce(const Label& label,
                                           const Members& members,
                                           const Tensor& tensor) {
  if (tensor.numel() * size_of(tensor.dtype()) <= SmallAllReduce::kMaxBytes) {
    return std::make_shared<SmallAllReduce>(label, members, tensor);
  }
  return std::make_shared<PiecewiseReduce>(label, members, tensor);
}

std::shared_ptr<Operation> make_reduce_scatter(const Label& label,
                                               const Members& members,
                                               const Tensor& output,
                                               const Tensor& input) {
  return std::make_shared<PiecewiseReduce>(label, members, output, input);
}

std::shared_ptr<Operation> make_all_gather(const Label& label,
                                           const Members& members,
                                           const Tensor& output,
                                           const Tensor& input) {
  return std::make_shared<AllGather>(label, members, output, input);
}

std::shared_ptr<Operation> make_broadcast(const Label& label,
                                          const Members& members,
                                          const Tensor& tensor,
                                          int root) {
  return std::make_shared<Broadcast>(label, members, tensor, root);
}

std::shared_ptr<Operation> make_all_to_all(const Label& label,
                                           const Members& members,
                                           const Tensor& output,
                                           const Tensor& input,
                                           const std::vector<int64_t>& output_counts,
                                           const std::vector<int64_t>& input_counts) {
  return std::make_shared<AllToAll>(label, members, output, input, output_counts, input_counts);
}

std::shared_ptr<Operation> make_send(const Label& label, const Tensor& tensor) {
  return std::make_shared<Message>(label, tensor);
}

std::shared_ptr<Operation> make_receive(const Label& label, const Tensor& tensor) {
  return std::make_shared<Message>(label, tensor);
}

std::shared_ptr<Operation> make_barrier(const Label& label, const Members& members) {
  return std::make_shared<Barrier>(label, members);
}

}  // namespace tapestry
