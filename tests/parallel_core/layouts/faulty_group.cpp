#include "tests/parallel_core/layouts/faulty_group.h"

#include <utility>

#include "autograd/tensor/rank_context.h"

namespace tapestry::testing {

namespace {

// Of a rank.
struct CallCounter {
  int64_t step = 0;
  int64_t calls = 0;
};
CallCounter& counter() { return RankContext::current().slot<CallCounter>(); }

class Done final : public Work {
 public:
  void wait() override {}
  bool done() const override { return true; }
};

class FaultyGroup final : public ProcessGroup {
 public:
  FaultyGroup(std::shared_ptr<ProcessGroup> inner, std::shared_ptr<const CommunicationFault> fault)
      : inner_(std::move(inner)), fault_(std::move(fault)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string name() const override { return inner_->name(); }
  const std::vector<int>& world_ranks() const override { return inner_->world_ranks(); }
  std::shared_ptr<ProcessGroup> new_group(const std::vector<int>& ranks,
                                          const std::string& name) override {
    return with_fault(inner_->new_group(ranks, name), fault_);
  }

  WorkHandle all_reduce_async(const Tensor& tensor, ReduceOp op) override {
    return goes_wrong(Collective::kAllReduce, tensor, tensor)
               ? done()
               : inner_->all_reduce_async(tensor, op);
  }
  WorkHandle all_gather_async(const Tensor& output, const Tensor& input) override {
    return goes_wrong(Collective::kAllGather, output, input)
               ? done()
               : inner_->all_gather_async(output, input);
  }
  WorkHandle reduce_scatter_async(const Tensor& output, const Tensor& input, ReduceOp op) override {
    return goes_wrong(Collective::kReduceScatter, output, input)
               ? done()
               : inner_->reduce_scatter_async(output, input, op);
  }
  WorkHandle broadcast_async(const Tensor& tensor, int root) override {
    return goes_wrong(Collective::kBroadcast, tensor, tensor)
               ? done()
               : inner_->broadcast_async(tensor, root);
  }
  WorkHandle all_to_all_async(const Tensor& output,
                              const Tensor& input,
                              const std::vector<int64_t>& output_counts,
                              const std::vector<int64_t>& input_counts) override {
    return goes_wrong(Collective::kAllToAll, output, input)
               ? done()
               : inner_->all_to_all_async(output, input, output_counts, input_counts);
  }
  // A message must come, so a fault changes what is in it.
  WorkHandle send_async(const Tensor& tensor, int destination) override {
    goes_wrong(Collective::kSend, tensor, tensor);
    return inner_->send_async(tensor, destination);
  }
  WorkHandle receive_async(const Tensor& tensor, int source) override {
    return inner_->receive_async(tensor, source);
  }
  void barrier() override { inner_->barrier(); }
  const CommunicationStats& stats() const override { return inner_->stats(); }
  void reset_stats() override { inner_->reset_stats(); }

 private:
  static WorkHandle done() { return std::make_shared<Done>(); }

  bool goes_wrong(Collective what, const Tensor& output, const Tensor& input) {
    if (what != fault_->what || name().rfind(fault_->group, 0) != 0) {
      return false;
    }
    CollectiveCall call = {*inner_, what, output, input, counter().step, 0};
    if (!fault_->matches(call)) {
      return false;
    }
    call.number = counter().calls++;
    return fault_->act(call);
  }

  std::shared_ptr<ProcessGroup> inner_;
  std::shared_ptr<const CommunicationFault> fault_;
};

}  // namespace

std::shared_ptr<ProcessGroup> with_fault(std::shared_ptr<ProcessGroup> group,
                                         std::shared_ptr<const CommunicationFault> fault) {
  return std::make_shared<FaultyGroup>(std::move(group), std::move(fault));
}

void start_step(int64_t step) { counter() = {.step = step}; }

}  // namespace tapestry::testing
