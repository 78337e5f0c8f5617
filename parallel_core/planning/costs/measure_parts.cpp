#include "parallel_core/planning/costs/measure_parts.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "autograd/kernels/machine/exact.h"
#include "autograd/kernels/machine/team.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/generator.h"
#include "parallel_core/comm/thread_ranks.h"
#include "parallel_core/optimizer/get_optimizer.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/planning/costs/part_timer.h"
#include "parallel_core/training/step/get_model.h"
#include "parallel_core/training/step/train_one_step.h"

namespace tapestry::planning {

namespace {

data::Batch made_up_batch(const AllConfig& config, uint64_t seed) {
  data::Batch batch;
  batch.batch = config.dataset_config.batch_size;
  batch.seq = config.model_config.seq_length;
  const auto vocabulary = static_cast<uint64_t>(config.model_config.vocab_size);
  for (int64_t row = 0; row < batch.batch; ++row) {
    batch.sample_ids.push_back(row);
    for (int64_t i = 0; i < batch.seq; ++i) {
      const uint64_t word =
          combine(combine(seed, static_cast<uint64_t>(row)), static_cast<uint64_t>(i));
      batch.tokens.push_back(static_cast<int64_t>(word % vocabulary));
      batch.labels.push_back(static_cast<int64_t>((word >> 20U) % vocabulary));
      batch.loss_mask.push_back(1);
    }
  }
  return batch;
}

// One rank's training.
class ShareRun {
 public:
  explicit ShareRun(const AllConfig& config)
      : model_(get_model(config)),
        optimizer_(get_optimizer(config, *model_)),
        cell_(*model_, *optimizer_, nullptr, config),
        timer_(config.model_config.num_layers) {
    batches_.push_back(made_up_batch(config, 1));
  }

  PartTimes step() {
    const ObserverScope observed(timer_);
    timer_.begin_step();
    {
      const PhaseScope phase("step");
      cell_(batches_);
    }
    PartTimes times = timer_.end_step();
    times.parameters = static_cast<double>(model_->num_parameters());
    return times;
  }

 private:
  std::unique_ptr<ParallelModel> model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  TrainOneStepCell cell_;
  PartTimer timer_;
  std::vector<data::Batch> batches_;
};

// The first rank's wish becomes everybody's.
int64_t agreed(ProcessGroup& world, int64_t own) {
  const Tensor number = full({1}, static_cast<double>(own), kFloat64);
  world.broadcast(number, 0);
  return std::llround(number.item());
}

std::vector<PartTimes> run_rank(ProcessGroup& world,
                                const ShareModel& share,
                                const Measuring& measuring) {
  const ExactScope exact(share.config.training_config.exact);
  ShareRun run(share.config);
  run.step();
  world.barrier();
  const double start = observer_clock();
  run.step();
  const double once = observer_clock() - start;
  const int64_t steps =
      agreed(world, std::clamp<int64_t>(static_cast<int64_t>(measuring.seconds / once), 3, 25));
  std::vector<PartTimes> times;
  for (int64_t step = 0; step < steps; ++step) {
    world.barrier();
    times.push_back(run.step());
  }
  return times;
}

}  // namespace

PartTimes measure_parts(const ShareModel& share, const Measuring& measuring) {
  std::vector<PartTimes> of_first;
  run_thread_ranks(measuring.ranks, [&](const std::shared_ptr<ProcessGroup>& world) {
    set_num_threads(measuring.threads);
    initialize_model_parallel({}, single_process_group());
    std::vector<PartTimes> times = run_rank(*world, share, measuring);
    destroy_model_parallel();
    if (world->rank() == 0) {
      of_first = std::move(times);
    }
  });
  return median_of(of_first);
}

}  // namespace tapestry::planning
