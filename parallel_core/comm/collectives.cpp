#include "parallel_core/comm/collectives.h"

#include <algorithm>
#include <utility>

#include "parallel_core/comm/group_operation.h"

namespace tapestry {

namespace {

class AllGather : public ScheduledOperation {
 public:
  AllGather(const Label& label,
            const Members& members,
            const Tensor& output,
            const Tensor& input,
            std::unique_ptr<Schedule> schedule)
      : ScheduledOperation(label, members, std::move(schedule)), output_(output), input_(input) {}

 protected:
  Place own() const { return {input_.at(0), input_.bytes()}; }
  Place pieces_of(int rank, int count = 1) const {
    return {output_.at(rank * input_.numel()), count * input_.bytes()};
  }
  void do_own_part() override { copy_bytes(pieces_of(rank()).data, input_.at(0), input_.bytes()); }

 private:
  TensorBytes output_;
  TensorBytes input_;
};

class DirectAllGather final : public AllGather {
 public:
  using AllGather::AllGather;

 private:
  Place outgoing(int /*to*/, int /*part*/) override { return own(); }
  Place incoming(int from, int /*part*/) override { return pieces_of(from); }
};

class RingAllGather final : public AllGather {
 public:
  using AllGather::AllGather;

 private:
  Place outgoing(int /*to*/, int part) override { return part == rank() ? own() : pieces_of(part); }
  Place incoming(int /*from*/, int part) override { return pieces_of(part); }
};

// Of pieces so small that a ring would only be slow.
class TreeAllGather final : public AllGather {
 public:
  TreeAllGather(const Label& label,
                const Members& members,
                const Tensor& output,
                const Tensor& input,
                std::unique_ptr<Schedule> schedule)
      : AllGather(label, members, output, input, std::move(schedule)) {
    AllGather::do_own_part();  // travels with the others of its subtree
  }

 private:
  void do_own_part() override {}
  Place subtree_of(int top) const { return pieces_of(top, Tree{size(), top}.subtree()); }
  Place outgoing(int /*to*/, int part) override {
    return subtree_of(part == Tree::kUp ? rank() : 0);
  }
  Place incoming(int from, int part) override { return subtree_of(part == Tree::kUp ? from : 0); }
};

class Broadcast final : public GroupOperation {
 public:
  Broadcast(const Label& label, const Members& members, const Tensor& tensor, int root)
      : GroupOperation(label, members), tensor_(tensor), root_(root) {}

 private:
  int from_root() const { return (rank() - root_ + size()) % size(); }
  int at_distance(int distance) const { return world_rank((root_ + distance) % size()); }

  // The tree is that of the distances from the root (Tree in schedule.h).
  void start(Communicator& communicator) override {
    const int own = from_root();
    if (own != 0) {
      communicator.receive(*this, at_distance(Tree{size(), own}.parent()), 0, tensor_.at(0),
                           tensor_.bytes());
    }
  }
  void advance(Communicator& communicator) override {
    if (forwarded_) {
      return;
    }
    forwarded_ = true;
    const int own = from_root();
    std::vector<int> children = Tree{size(), own}.children();
    for (auto child = children.rbegin(); child != children.rend(); ++child) {  // longest way first
      communicator.send(*this, at_distance(*child), 0, tensor_.at(0), tensor_.bytes());
    }
  }

  TensorBytes tensor_;
  int root_;
  bool forwarded_ = false;
};

class AllToAll final : public ScheduledOperation {
 public:
  AllToAll(const Label& label,
           const Members& members,
           const Tensor& output,
           const Tensor& input,
           const std::vector<int64_t>& output_counts,
           const std::vector<int64_t>& input_counts)
      : ScheduledOperation(label, members, make_exchange(members.size(), members.rank)),
        output_(output),
        input_(input),
        to_(starts_of(output_counts)),
        from_(starts_of(input_counts)) {}

 private:
  static std::vector<int64_t> starts_of(const std::vector<int64_t>& counts) {
    std::vector<int64_t> starts = {0};
    for (const int64_t count : counts) {
      starts.push_back(starts.back() + count);
    }
    return starts;
  }
  static Place piece(const TensorBytes& tensor, const std::vector<int64_t>& starts, int rank) {
    const auto r = static_cast<size_t>(rank);
    return {tensor.at(starts[r]), (starts[r + 1] - starts[r]) * tensor.element()};
  }
  Place outgoing(int to, int /*part*/) override { return piece(input_, from_, to); }
  Place incoming(int from, int /*part*/) override { return piece(output_, to_, from); }
  void do_own_part() override {
    const Place own = piece(input_, from_, rank());
    copy_bytes(piece(output_, to_, rank()).data, own.data, own.bytes);
  }

  TensorBytes output_;
  TensorBytes input_;
  std::vector<int64_t> to_;
  std::vector<int64_t> from_;
};

class Message final : public Operation {
 public:
  Message(const Label& label, const Tensor& tensor)
      : Operation(label,
                  tensor.numel() * size_of(tensor.dtype()) > Envelope::kInlineBytes
                      ? Background::kYes
                      : Background::kNo),
        tensor_(tensor) {}

 private:
  void start(Communicator& communicator) override {
    if (label().collective == Collective::kSend) {
      communicator.send(*this, label().root, 0, tensor_.at(0), tensor_.bytes());
    } else {
      communicator.receive(*this, label().root, 0, tensor_.at(0), tensor_.bytes());
    }
  }

  TensorBytes tensor_;
};

// In round k each rank tells the one 2^k after it and hears from the one 2^k before it.
class Barrier final : public GroupOperation {
 public:
  Barrier(const Label& label, const Members& members)
      : GroupOperation(label, members, Background::kNo) {}

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

std::shared_ptr<Operation> make_all_gather(const Label& label,
                                           const Members& members,
                                           const Tensor& output,
                                           const Tensor& input) {
  const int ranks = members.size();
  if (ranks <= kMostDirect) {
    return std::make_shared<DirectAllGather>(label, members, output, input,
                                             make_exchange(ranks, members.rank));
  }
  if (input.numel() * size_of(input.dtype()) <= kSmallTreeAllGather) {
    return std::make_shared<TreeAllGather>(label, members, output, input,
                                           make_tree_gather_and_broadcast(ranks, members.rank));
  }
  return std::make_shared<RingAllGather>(label, members, output, input,
                                         make_ring_gather(ranks, members.rank));
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
