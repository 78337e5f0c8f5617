// That reductions and gathers which are to overlap with computing do: they are through while a rank
// is still busy with what comes next. No clock is read.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "autograd/ops/ops.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/factory.h"
#include "nn/module.h"
#include "parallel_core/comm/thread_ranks.h"
#include "parallel_core/distributed/distributed_data_parallel.h"
#include "tests/parallel_core/comm/while_computing.h"

namespace tapestry {
namespace {

using testing::is_done_while_computing;

constexpr int64_t kSize = 640'000;  // several segments

// Keeps what its rank has started.
class RecordingGroup final : public ProcessGroup {
 public:
  explicit RecordingGroup(std::shared_ptr<ProcessGroup> inner) : inner_(std::move(inner)) {}
  std::vector<WorkHandle> started;

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string name() const override { return inner_->name(); }
  const std::vector<int>& world_ranks() const override { return inner_->world_ranks(); }
  std::shared_ptr<ProcessGroup> new_group(const std::vector<int>& ranks,
                                          const std::string& name) override {
    return inner_->new_group(ranks, name);
  }
  WorkHandle all_reduce_async(const Tensor& tensor, ReduceOp op) override {
    return kept(inner_->all_reduce_async(tensor, op));
  }
  WorkHandle all_gather_async(const Tensor& output, const Tensor& input) override {
    return kept(inner_->all_gather_async(output, input));
  }
  WorkHandle reduce_scatter_async(const Tensor& output, const Tensor& input, ReduceOp op) override {
    return kept(inner_->reduce_scatter_async(output, input, op));
  }
  WorkHandle broadcast_async(const Tensor& tensor, int root) override {
    return kept(inner_->broadcast_async(tensor, root));
  }
  WorkHandle all_to_all_async(const Tensor& output,
                              const Tensor& input,
                              const std::vector<int64_t>& output_counts,
                              const std::vector<int64_t>& input_counts) override {
    return kept(inner_->all_to_all_async(output, input, output_counts, input_counts));
  }
  WorkHandle send_async(const Tensor& tensor, int destination) override {
    return kept(inner_->send_async(tensor, destination));
  }
  WorkHandle receive_async(const Tensor& tensor, int source) override {
    return kept(inner_->receive_async(tensor, source));
  }
  void barrier() override { inner_->barrier(); }
  const CommunicationStats& stats() const override { return inner_->stats(); }
  void reset_stats() override { inner_->reset_stats(); }

 private:
  WorkHandle kept(WorkHandle work) {
    started.push_back(work);
    return work;
  }
  std::shared_ptr<ProcessGroup> inner_;
};

// x, whose backward pass takes as long as `work` does.
struct Busy {
  static constexpr OpName name = "busy";
  std::function<void()> work;
  Tensor forward(const Tensor& x) { return x; }
  Tensor backward(const Tensor& dy) const {
    work();
    return dy;
  }
};

class TwoLayers final : public nn::Module {
 public:
  TwoLayers() {
    register_parameter("first", ones({kSize}));
    register_parameter("last", ones({kSize}));
  }
  std::string type_name() const override { return "TwoLayers"; }
  // Between the backward passes of the two is `work`.
  Tensor loss(const std::function<void()>& work) const {
    const auto parameters = named_parameters();
    const Tensor hidden = apply_op(Busy{work}, *parameters[0].parameter * 2);
    return sum(hidden * *parameters[1].parameter);
  }
};

class OverlappedReduction : public ::testing::TestWithParam<Sharding> {};

TEST_P(OverlappedReduction, AGradientIsReducedWhileTheNextOneIsComputed) {
  run_thread_ranks(2, [](const std::shared_ptr<ProcessGroup>& world) {
    RecordingGroup group(world);
    const TwoLayers model;
    DistributedDataParallel data_parallel(
        model.named_parameters(),
        {.sharding = GetParam(), .bucket_size = 1, .overlap_grad_reduce = true}, group);
    data_parallel.start_step(0, 1);
    bool was_busy = false;
    model
        .loss([&] {
          was_busy = true;
          ASSERT_EQ(group.started.size(), 1U);
          EXPECT_TRUE(is_done_while_computing(*group.started[0]));
        })
        .backward();
    EXPECT_TRUE(was_busy);
    ASSERT_EQ(group.started.size(), 2U);
    data_parallel.finish_reduce();
    EXPECT_TRUE(group.started[1]->done());
    for (const auto& entry : model.named_parameters()) {
      const ModelGradients::Held held = data_parallel.held_gradient(entry);
      EXPECT_EQ(held.elements.at({0}), 4) << entry.name;
      EXPECT_EQ(held.elements.at({held.elements.numel() - 1}), 4) << entry.name;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Sharding,
                         OverlappedReduction,
                         ::testing::Values(Sharding::kNone,
                                           Sharding::kOptimizer,
                                           Sharding::kGradients));

TEST(OverlappedGather, ParametersComeTogetherWhileTheRankComputes) {
  run_thread_ranks(2, [](const std::shared_ptr<ProcessGroup>& world) {
    RecordingGroup group(world);
    const TwoLayers model;
    DistributedDataParallel data_parallel(
        model.named_parameters(),
        {.sharding = Sharding::kOptimizer, .bucket_size = 1, .overlap_param_gather = true}, group);
    for (const ParameterPiece& piece : data_parallel.pieces()) {
      const NoGradGuard guard;
      fill_(piece.values, world->rank() + 2);
    }
    data_parallel.parameters_changed();
    ASSERT_EQ(group.started.size(), 2U);
    for (const WorkHandle& work : group.started) {
      EXPECT_TRUE(is_done_while_computing(*work));
    }
    for (const auto& entry : model.named_parameters()) {
      EXPECT_EQ(entry.parameter->at({0}), 2);
      EXPECT_EQ(entry.parameter->at({kSize - 1}), 3);
    }
  });
}

}  // namespace
}  // namespace tapestry
