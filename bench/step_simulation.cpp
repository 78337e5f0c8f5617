#include <algorithm>
#include <memory>
#include <vector>

#include "autograd/tensor/factory.h"
#include "bench/step_model.h"
#include "parallel_core/comm/simulated_ranks.h"

namespace tapestry::bench {

namespace {

// One rank's step: micro-batches forward and backward in turns (1F1B), then the gradients.
class StepOfRank {
 public:
  StepOfRank(const StepModel& model,
             const StepLayout& layout,
             double layer_seconds,
             ProcessGroup& world,
             SimulatedClock& clock)
      : layout_(layout),
        layers_(model.layers / layout.pp),
        layer_seconds_(layer_seconds),
        clock_(clock),
        hidden_(zeros({hidden_bytes(model, layout) / 4})),
        coming_(zeros(hidden_.shape())),
        going_(zeros(hidden_.shape())) {
    // Tensor-parallel ranks are neighbours, stages farthest apart.
    const int rank = world.rank();
    const int tp = layout.tp;
    const int dp = layout.dp;
    tensor_ = group(world, rank / tp * tp, 1, tp, "tp");
    data_ = group(world, rank / (tp * dp) * (tp * dp) + rank % tp, tp, dp, "dp");
    pipeline_ = group(world, rank % (tp * dp), tp * dp, layout.pp, "pp");
    const int64_t share = model.parameters() / tp / layout.pp / dp;
    piece_ = zeros({share});
    gradients_ = zeros({share * dp});
  }

  void run() {
    const int64_t ahead = std::min<int64_t>(layout_.pp - pipeline_->rank() - 1, layout_.micro);
    for (int64_t i = 0; i < ahead; ++i) {
      forward();
    }
    for (int64_t i = ahead; i < layout_.micro; ++i) {
      forward();
      backward();
    }
    for (int64_t i = 0; i < ahead; ++i) {
      backward();
    }
    for (const WorkHandle& sent : sent_) {
      sent->wait();
    }
    if (layout_.dp > 1) {
      data_->reduce_scatter(piece_, gradients_);
      data_->all_gather(gradients_, piece_);  // float32 as well
    }
  }

 private:
  static std::shared_ptr<ProcessGroup> group(
      ProcessGroup& world, int first, int stride, int size, const char* name) {
    std::vector<int> ranks;
    for (int i = 0; i < size; ++i) {
      ranks.push_back(first + i * stride);
    }
    return world.new_group(ranks, name);
  }

  void forward() { pass(pipeline_->rank() - 1, pipeline_->rank() + 1, layer_seconds_ / 3); }
  void backward() { pass(pipeline_->rank() + 1, pipeline_->rank() - 1, layer_seconds_ * 2 / 3); }
  void pass(int from, int to, double layer_seconds) {
    const auto is_stage = [&](int rank) { return rank >= 0 && rank < layout_.pp; };
    if (is_stage(from)) {
      pipeline_->receive(coming_, from);
    }
    for (int64_t layer = 0; layer < layers_; ++layer) {
      clock_.compute(layer_seconds);
      if (layout_.tp > 1) {
        tensor_->all_reduce(hidden_);
        tensor_->all_reduce(hidden_);
      }
    }
    if (is_stage(to)) {
      sent_.push_back(pipeline_->send_async(going_, to));
    }
  }

  StepLayout layout_;
  int64_t layers_;
  double layer_seconds_;  // of a micro-batch, forward and backward
  SimulatedClock& clock_;
  std::shared_ptr<ProcessGroup> tensor_, data_, pipeline_;
  Tensor hidden_, coming_, going_;
  Tensor piece_, gradients_;
  std::vector<WorkHandle> sent_;
};

}  // namespace

double simulated_step(const StepModel& model,
                      const RankMachine& machine,
                      const StepLayout& layout) {
  const double computing =
      model.operations() / layout.ranks() / (machine.flops * machine.efficiency);
  const double layer_seconds =
      computing / static_cast<double>(model.layers / layout.pp * layout.micro);
  return simulate_ranks(layout.ranks(), machine.network,
                        [&](ProcessGroup& world, SimulatedClock& clock) {
                          StepOfRank(model, layout, layer_seconds, world, clock).run();
                        });
}

}  // namespace tapestry::bench
