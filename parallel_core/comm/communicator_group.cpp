#include "parallel_core/comm/communicator_group.h"

#include <algorithm>
#include <exception>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "autograd/tape/observer.h"
#include "autograd/tensor/error.h"
#include "parallel_core/comm/collectives.h"

namespace tapestry {

namespace {

// Tells the rank's observers of a collective.
class CollectiveReport {
 public:
  CollectiveReport(const Operation& operation, std::string group, int64_t bytes)
      : group_(std::move(group)),
        run_{.kind = name_of(operation.label().collective),
             .group = group_,
             .group_id = operation.label().group,
             .sequence = operation.label().sequence,
             .peer = operation.label().is_message() ? operation.label().root : -1,
             .bytes = bytes,
             .module = detail::current_module()} {
    detail::tell(detail::all_observers(), &Observer::collective_begins, run_);
  }

  void wait_begins() { run_.wait_began = observer_clock(); }
  void ended(const Operation& operation) {
    if (!std::exchange(told_, true)) {
      run_.finished = operation.finished_at();
      detail::tell(detail::all_observers(), &Observer::collective_ended, run_);
    }
  }

 private:
  std::string group_;
  CollectiveRun run_;
  bool told_ = false;
};

// The caller's end of an operation, which the communicator keeps until it has finished.
class OperationWork final : public Work {
 public:
  OperationWork(std::shared_ptr<Communicator> communicator,
                std::shared_ptr<Operation> operation,
                std::unique_ptr<CollectiveReport> report)
      : communicator_(std::move(communicator)),
        operation_(std::move(operation)),
        report_(std::move(report)) {}
  OperationWork(const OperationWork&) = delete;
  OperationWork& operator=(const OperationWork&) = delete;
  ~OperationWork() override {
    // While an exception is on its way, this rank is about to stop the others.
    if ((operation_->finished() && report_ == nullptr) || communicator_->failed() ||
        std::uncaught_exceptions() > 0) {
      return;
    }
    try {
      wait();
    } catch (const CommError&) {  // NOLINT(bugprone-empty-catch): the next call throws it again
    }
  }

  void wait() override {
    if (report_ == nullptr) [[likely]] {
      communicator_->wait(*operation_);
      return;
    }
    report_->wait_begins();
    communicator_->wait(*operation_);
    report_->ended(*operation_);
    report_.reset();
  }
  bool done() const override { return communicator_->done(*operation_); }

 private:
  std::shared_ptr<Communicator> communicator_;
  std::shared_ptr<Operation> operation_;
  std::unique_ptr<CollectiveReport> report_;  // null: nobody observes
};

void require_dense(Collective collective, const Tensor& tensor) {
  check<ValueError>(tensor.defined() && tensor.is_contiguous(), name_of(collective),
                    ": the tensor ", describe(tensor), " must be contiguous");
}

void require_same_dtype(Collective collective, const Tensor& output, const Tensor& input) {
  require_dense(collective, output);
  require_dense(collective, input);
  check<ValueError>(output.dtype() == input.dtype(), name_of(collective), ": the output ",
                    describe(output), " has another dtype than the input ", describe(input));
}

class CommunicatorGroup final : public ProcessGroup {
 public:
  CommunicatorGroup(std::shared_ptr<Communicator> communicator,
                    std::string name,
                    std::vector<int> world_ranks)
      : communicator_(std::move(communicator)),
        name_(std::move(name)),
        id_(communicator_->register_group(name_, world_ranks)) {
    const auto own = std::find(world_ranks.begin(), world_ranks.end(), communicator_->rank());
    check<ValueError>(own != world_ranks.end(), "group ", name_, ": rank ", communicator_->rank(),
                      " is not a member");
    members_.rank = static_cast<int>(own - world_ranks.begin());
    members_.ascending = std::is_sorted(world_ranks.begin(), world_ranks.end());
    members_.world_ranks = std::make_shared<const std::vector<int>>(std::move(world_ranks));
  }

  int rank() const override { return members_.rank; }
  int size() const override { return members_.size(); }
  std::string name() const override { return name_; }
  const std::vector<int>& world_ranks() const override { return *members_.world_ranks; }

  std::shared_ptr<ProcessGroup> new_group(const std::vector<int>& ranks,
                                          const std::string& name) override {
    std::vector<int> world_ranks;
    world_ranks.reserve(ranks.size());
    std::vector<bool> seen(members_.world_ranks->size());
    for (const int rank : ranks) {
      require_member("new_group", rank);
      check<ValueError>(!seen[static_cast<size_t>(rank)], "new_group ", name, ": rank ", rank,
                        " appears twice");
      seen[static_cast<size_t>(rank)] = true;
      world_ranks.push_back(world_rank(rank));
    }
    return std::make_shared<CommunicatorGroup>(communicator_, name, std::move(world_ranks));
  }

  WorkHandle all_reduce_async(const Tensor& tensor, ReduceOp op) override {
    require_dense(Collective::kAllReduce, tensor);
    Label label = next_label(Collective::kAllReduce, tensor);
    label.reduce_op = op;
    return start(make_all_reduce(label, members_, tensor), tensor);
  }

  WorkHandle all_gather_async(const Tensor& output, const Tensor& input) override {
    require_same_dtype(Collective::kAllGather, output, input);
    check<ValueError>(output.numel() == size() * input.numel(), "all_gather: the output ",
                      describe(output), " is not ", size(), " times the input ", describe(input));
    const Label label = next_label(Collective::kAllGather, input);
    return start(make_all_gather(label, members_, output, input), output);
  }

  WorkHandle reduce_scatter_async(const Tensor& output, const Tensor& input, ReduceOp op) override {
    require_same_dtype(Collective::kReduceScatter, output, input);
    check<ValueError>(input.numel() == size() * output.numel(), "reduce_scatter: the input ",
                      describe(input), " is not ", size(), " times the output ", describe(output));
    Label label = next_label(Collective::kReduceScatter, output);
    label.reduce_op = op;
    return start(make_reduce_scatter(label, members_, output, input), input);
  }

  WorkHandle broadcast_async(const Tensor& tensor, int root) override {
    require_dense(Collective::kBroadcast, tensor);
    require_member("broadcast", root);
    Label label = next_label(Collective::kBroadcast, tensor);
    label.root = world_rank(root);
    return start(make_broadcast(label, members_, tensor, root), tensor);
  }

  WorkHandle all_to_all_async(const Tensor& output,
                              const Tensor& input,
                              const std::vector<int64_t>& output_counts,
                              const std::vector<int64_t>& input_counts) override {
    require_same_dtype(Collective::kAllToAll, output, input);
    const std::vector<int64_t> to = pieces("output", output, output_counts);
    const std::vector<int64_t> from = pieces("input", input, input_counts);
    check<ValueError>(to[static_cast<size_t>(rank())] == from[static_cast<size_t>(rank())],
                      "all_to_all: rank ", rank(), " sends itself ",
                      from[static_cast<size_t>(rank())], " elements and expects ",
                      to[static_cast<size_t>(rank())]);
    Label label = next_label(Collective::kAllToAll, input);
    label.count = -1;  // ranks may differ; each message's size is checked
    return start(make_all_to_all(label, members_, output, input, to, from), input);
  }

  WorkHandle send_async(const Tensor& tensor, int destination) override {
    return message(Collective::kSend, tensor, destination, messages_sent_);
  }
  WorkHandle receive_async(const Tensor& tensor, int source) override {
    return message(Collective::kReceive, tensor, source, messages_received_);
  }

  void barrier() override {
    Label label;
    label.group = id_;
    label.sequence = next_sequence_++;
    label.collective = Collective::kBarrier;
    start(make_barrier(label, members_), {})->wait();
  }

  Communicator& communicator() const { return *communicator_; }

  const CommunicationStats& stats() const override { return stats_; }
  void reset_stats() override { stats_ = {}; }

 private:
  int world_rank(int rank) const { return world_ranks()[static_cast<size_t>(rank)]; }

  void require_member(const char* what, int rank) const {
    check<ValueError>(rank >= 0 && rank < size(), what, ": rank ", rank, " is not in group ", name_,
                      " of ", size(), " ranks");
  }

  Label next_label(Collective collective, const Tensor& tensor) {
    Label label;
    label.group = id_;
    label.sequence = next_sequence_++;
    label.count = tensor.numel();
    label.collective = collective;
    label.dtype = tensor.dtype();
    return label;
  }

  WorkHandle message(Collective collective,
                     const Tensor& tensor,
                     int peer,
                     std::unordered_map<int, uint64_t>& numbers) {
    require_dense(collective, tensor);
    require_member(name_of(collective), peer);
    Label label;
    label.group = id_;
    label.sequence = numbers[peer]++;
    label.count = tensor.numel();
    label.root = world_rank(peer);
    label.collective = collective;
    label.dtype = tensor.dtype();
    return start(
        collective == Collective::kSend ? make_send(label, tensor) : make_receive(label, tensor),
        tensor);
  }

  std::vector<int64_t> pieces(const char* which,
                              const Tensor& tensor,
                              const std::vector<int64_t>& counts) const {
    if (counts.empty()) {
      check<ValueError>(tensor.numel() % size() == 0, "all_to_all: the ", which, " ",
                        describe(tensor), " has no equal pieces for ", size(), " ranks");
      std::vector<int64_t> equal(world_ranks().size(), tensor.numel() / size());
      return equal;
    }
    check<ValueError>(std::ssize(counts) == size(), "all_to_all: ", counts.size(), " ", which,
                      " counts for ", size(), " ranks");
    check<ValueError>(*std::min_element(counts.begin(), counts.end()) >= 0, "all_to_all: an ",
                      which, " count is negative");
    const int64_t sum = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    check<ValueError>(sum == tensor.numel(), "all_to_all: the ", which, " counts sum to ", sum,
                      ", the tensor ", describe(tensor), " has ", tensor.numel(), " elements");
    return counts;
  }

  // `whole` is the tensor whose bytes are counted; undefined for a barrier.
  WorkHandle start(std::shared_ptr<Operation> operation, const Tensor& whole) {
    CommunicationStats::Counter& counter =
        stats_.by_collective[static_cast<size_t>(operation->label().collective)];
    const int64_t bytes = whole.defined() ? whole.numel() * size_of(whole.dtype()) : 0;
    ++counter.calls;
    counter.bytes += bytes;
    std::unique_ptr<CollectiveReport> report;
    if (detail::all_observers() != nullptr) [[unlikely]] {
      operation->note_end();
      report = std::make_unique<CollectiveReport>(*operation, name_, bytes);
    }
    communicator_->start(operation);
    if (communicator_->options().progress == CommProgress::kNone &&
        !operation->label().is_message()) {
      communicator_->wait(*operation);
    }
    return std::make_shared<OperationWork>(communicator_, std::move(operation), std::move(report));
  }

  std::shared_ptr<Communicator> communicator_;
  std::string name_;
  Members members_;
  uint64_t id_;
  uint64_t next_sequence_ = 0;
  std::unordered_map<int, uint64_t> messages_sent_;      // to each rank
  std::unordered_map<int, uint64_t> messages_received_;  // from each rank
  CommunicationStats stats_;
};

}  // namespace

std::shared_ptr<ProcessGroup> make_world_group(std::shared_ptr<Communicator> communicator) {
  std::vector<int> ranks(static_cast<size_t>(communicator->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return std::make_shared<CommunicatorGroup>(std::move(communicator), "world", std::move(ranks));
}

std::string tell_waits(ProcessGroup& group) {
  const auto* own = dynamic_cast<const CommunicatorGroup*>(&group);
  return own == nullptr ? "" : own->communicator().tell_waits();
}

}  // namespace tapestry
