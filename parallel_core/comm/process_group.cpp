#include "parallel_core/comm/process_group.h"

#include <deque>
#include <utility>

#include "autograd/ops/map.h"
#include "autograd/tape/observer.h"
#include "autograd/tensor/error.h"
#include "parallel_core/comm/label.h"

namespace tapestry {

namespace {

class FinishedWork final : public Work {
 public:
  void wait() override {}
  bool done() const override { return true; }
};

class SingleProcessGroup final : public ProcessGroup {
 public:
  explicit SingleProcessGroup(std::string name) : name_(std::move(name)) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string name() const override { return name_; }
  const std::vector<int>& world_ranks() const override { return ranks_; }

  std::shared_ptr<ProcessGroup> new_group(const std::vector<int>& ranks,
                                          const std::string& name) override {
    check<ValueError>(ranks == ranks_, "new_group: a world of one has rank 0 alone, got ",
                      ranks.size(), " ranks");
    return std::make_shared<SingleProcessGroup>(name);
  }

  WorkHandle all_reduce_async(const Tensor& tensor, ReduceOp /*op*/) override {
    require_dense(tensor);
    return count(Collective::kAllReduce, tensor);
  }
  WorkHandle all_gather_async(const Tensor& output, const Tensor& input) override {
    copy("all_gather", output, input);
    return count(Collective::kAllGather, output);
  }
  WorkHandle reduce_scatter_async(const Tensor& output,
                                  const Tensor& input,
                                  ReduceOp /*op*/) override {
    copy("reduce_scatter", output, input);
    return count(Collective::kReduceScatter, input);
  }
  WorkHandle broadcast_async(const Tensor& tensor, int root) override {
    require_dense(tensor);
    require_self("broadcast", root);
    return count(Collective::kBroadcast, tensor);
  }
  WorkHandle all_to_all_async(const Tensor& output,
                              const Tensor& input,
                              const std::vector<int64_t>& output_counts,
                              const std::vector<int64_t>& input_counts) override {
    for (const std::vector<int64_t>* counts : {&output_counts, &input_counts}) {
      check<ValueError>(counts->empty() || *counts == std::vector<int64_t>{input.numel()},
                        "all_to_all: the counts of a group of one must be those of the tensor ",
                        describe(input));
    }
    copy("all_to_all", output, input);
    return count(Collective::kAllToAll, input);
  }
  WorkHandle send_async(const Tensor& tensor, int destination) override {
    require_dense(tensor);
    require_self("send", destination);
    messages_.push_back(dense_copy(tensor));
    return count(Collective::kSend, tensor);
  }
  WorkHandle receive_async(const Tensor& tensor, int source) override {
    require_self("receive", source);
    check<CommError>(!messages_.empty(),
                     "receive: rank 0 waits for a message from itself that it has not sent");
    copy("receive", tensor, messages_.front());
    messages_.pop_front();
    return count(Collective::kReceive, tensor);
  }
  void barrier() override {
    ++stats_.by_collective[static_cast<size_t>(Collective::kBarrier)].calls;
  }

  const CommunicationStats& stats() const override { return stats_; }
  void reset_stats() override { stats_ = {}; }

 private:
  static void require_dense(const Tensor& tensor) {
    check<ValueError>(tensor.is_contiguous(), "collective: the tensor ", describe(tensor),
                      " must be contiguous");
  }
  static void require_self(const char* what, int rank) {
    check<ValueError>(rank == 0, what, ": rank ", rank, " is not in a group of one");
  }
  static void copy(const char* what, const Tensor& output, const Tensor& input) {
    require_dense(output);
    require_dense(input);
    check<ValueError>(output.numel() == input.numel() && output.dtype() == input.dtype(), what,
                      ": the output ", describe(output), " does not fit the input ",
                      describe(input));
    if (output.raw() != input.raw()) {
      copy_values(input.view({-1}), output.view({-1}));
    }
  }
  WorkHandle count(Collective collective, const Tensor& tensor) {
    CommunicationStats::Counter& counter = stats_.by_collective[static_cast<size_t>(collective)];
    const int64_t bytes = tensor.numel() * size_of(tensor.dtype());
    const uint64_t sequence = static_cast<uint64_t>(counter.calls);
    ++counter.calls;
    counter.bytes += bytes;
    if (const auto* observers = detail::all_observers()) [[unlikely]] {
      CollectiveRun run{.kind = name_of(collective),
                        .group = name_,
                        .sequence = sequence,
                        .bytes = bytes,
                        .module = detail::current_module()};
      detail::tell(observers, &Observer::collective_begins, run);
      run.wait_began = run.finished = observer_clock();
      detail::tell(observers, &Observer::collective_ended, run);
    }
    return std::make_shared<FinishedWork>();
  }

  std::string name_;
  std::vector<int> ranks_ = {0};
  std::deque<Tensor> messages_;
  CommunicationStats stats_;
};

}  // namespace

std::shared_ptr<ProcessGroup> single_process_group() {
  return std::make_shared<SingleProcessGroup>("world");
}

}  // namespace tapestry
