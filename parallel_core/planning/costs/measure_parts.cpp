#include "parallel_core/planning/costs/measure_parts.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <latch>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "autograd/kernels/machine/exact.h"
#include "autograd/kernels/machine/team.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/generator.h"
#include "parallel_core/comm/polling_transport.h"
#include "parallel_core/comm/sum_over.h"
#include "parallel_core/comm/thread_ranks.h"
#include "parallel_core/distributed/distributed_data_parallel.h"
#include "parallel_core/optimizer/get_optimizer.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/planning/costs/part_timer.h"
#include "parallel_core/training/ranks/initialize_ranks.h"
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
        data_parallel_(get_data_parallel(config, *model_)),
        optimizer_(get_optimizer(config, *model_, data_parallel_.get())),
        cell_(*model_, *optimizer_, nullptr, config, data_parallel_.get()),
        timer_(config.model_config.num_layers) {
    for (int64_t i = 0; i < config.dataset_config.micro_batch_num; ++i) {
      batches_.push_back(made_up_batch(config, static_cast<uint64_t>(i + 1)));
    }
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
    const double once = 1.0 / static_cast<double>(batches_.size());
    for (PassTime& layer : times.layers) {
      layer = layer * once;
    }
    times.before = times.before * once;
    times.after = times.after * once;
    return times;
  }

 private:
  std::unique_ptr<ParallelModel> model_;
  std::unique_ptr<DistributedDataParallel> data_parallel_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  TrainOneStepCell cell_;
  PartTimer timer_;
  std::vector<data::Batch> batches_;
};

// The mean of what all ranks have, the same on all of them.
PartTimes mean_over(ProcessGroup& world, const PartTimes& own) {
  std::vector<double> values = {own.before.forward, own.before.backward, own.after.forward,
                                own.after.backward, own.reduce,          own.update,
                                own.fixed};
  for (const PassTime& layer : own.layers) {
    values.insert(values.end(), {layer.forward, layer.backward});
  }
  sum_over(world, values);
  for (double& value : values) {
    value /= world.size();
  }
  PartTimes mean{.layers = std::vector<PassTime>(own.layers.size()),
                 .before = {values[0], values[1]},
                 .after = {values[2], values[3]},
                 .reduce = values[4],
                 .update = values[5],
                 .fixed = values[6],
                 .parameters = own.parameters};
  for (size_t i = 0; i < mean.layers.size(); ++i) {
    mean.layers[i] = {values[7 + 2 * i], values[8 + 2 * i]};
  }
  return mean;
}

double step_of(const PartTimes& times, const ShareModel& share) {
  return times.step(static_cast<double>(share.config.dataset_config.micro_batch_num));
}

// Some steps one after the other; the mean of the middle half of them. Where ranks share cores a
// part of a step, be it short, may be interrupted or not, so that its own median would say nothing.
PartTimes measure_steps(ProcessGroup& world,
                        ShareRun& run,
                        const ShareModel& share,
                        const Measuring& measuring) {
  world.barrier();
  const double start = observer_clock();
  run.step();
  const double once = sum_over(world, observer_clock() - start) / world.size();
  const auto steps = std::clamp<int64_t>(static_cast<int64_t>(measuring.seconds / 2 / once), 4, 15);
  std::vector<PartTimes> times;
  for (int64_t step = 0; step < steps; ++step) {
    world.barrier();
    times.push_back(mean_over(world, run.step()));
  }
  std::sort(times.begin(), times.end(), [&](const PartTimes& a, const PartTimes& b) {
    return step_of(a, share) < step_of(b, share);
  });
  const size_t quarter = times.size() / 4;
  PartTimes mean;
  for (size_t step = quarter; step < times.size() - quarter; ++step) {
    mean += times[step];
  }
  mean *= 1.0 / static_cast<double>(times.size() - 2 * quarter);
  return mean;
}

// Shares that run at the same time: the first is measured, the others compute until it is done.
class SharesAtOnce {
 public:
  SharesAtOnce(const ShareModel& share, const Measuring& measuring, int shares)
      : share_(share),
        measuring_(measuring),
        begun_(shares),
        has_begun_(static_cast<size_t>(shares)) {}

  // One of them, on threads of its own.
  void run(int index) {
    const Finished finished(*this, index);
    run_thread_ranks(
        static_cast<int>(share_.ranks()),
        [&](const std::shared_ptr<ProcessGroup>& world) { run_rank(world, index); },
        waiting_like_processes());
  }

  // What the first has taken, once all are through; throws what it has thrown.
  PartTimes result() const {
    if (error_ != nullptr) {
      std::rethrow_exception(error_);
    }
    return found_;
  }
  void set_error(std::exception_ptr error) { error_ = std::move(error); }

 private:
  // Whatever happens, nobody waits for a share for ever.
  class Finished {
   public:
    Finished(SharesAtOnce& all, int index) : all_(all), index_(index) {}
    Finished(const Finished&) = delete;
    Finished& operator=(const Finished&) = delete;
    ~Finished() {
      all_.begin(index_);
      if (index_ == 0) {
        all_.done_ = true;
      }
    }

   private:
    SharesAtOnce& all_;
    int index_;
  };

  void begin(int index) {
    if (!has_begun_[static_cast<size_t>(index)].exchange(true)) {
      begun_.count_down();
    }
  }

  void run_rank(const std::shared_ptr<ProcessGroup>& world, int index) {
    set_num_threads(measuring_.threads);
    initialize_model_parallel(model_parallel_sizes(share_.config.parallel_config), world);
    const ExactScope exact(share_.config.training_config.exact);
    {
      ShareRun run(share_.config);
      run.step();
      begin(index);
      if (index == 0) {
        begun_.wait();
        const PartTimes times = measure_steps(*world, run, share_, measuring_);
        if (world->rank() == 0) {
          found_ = times;
        }
      } else {
        while (sum_over(*world, done_ ? 1.0 : 0.0) == 0) {
          run.step();
        }
      }
    }
    destroy_model_parallel();
  }

  const ShareModel& share_;
  const Measuring& measuring_;
  std::latch begun_;
  std::vector<std::atomic<bool>> has_begun_;
  std::atomic<bool> done_ = false;
  PartTimes found_;
  std::exception_ptr error_;
};

PartTimes measure_once(const ShareModel& share, const Measuring& measuring) {
  const int shares = measuring.ranks / static_cast<int>(share.ranks());
  SharesAtOnce all(share, measuring, shares);
  std::vector<std::thread> others;
  for (int index = 1; index < shares; ++index) {
    others.emplace_back([&all, index] {
      try {
        all.run(index);
      } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the first says it too
      }
    });
  }
  try {
    all.run(0);
  } catch (...) {
    all.set_error(std::current_exception());
  }
  for (std::thread& other : others) {
    other.join();
  }
  return all.result();
}

}  // namespace

PartTimes measure_parts(const ShareModel& share, const Measuring& measuring) {
  constexpr size_t kMost = 5;
  constexpr double kAgree = 1.04;
  check<ValueError>(measuring.ranks % share.ranks() == 0, "measure_parts: shares of ",
                    share.ranks(), " ranks on ", measuring.ranks, "; expected a multiple");
  std::vector<PartTimes> found;
  const auto seconds = [&](size_t i) { return step_of(found[i], share); };
  while (found.size() < 2 || (found.size() < kMost && seconds(1) > kAgree * seconds(0))) {
    found.push_back(measure_once(share, measuring));
    std::sort(found.begin(), found.end(), [&](const PartTimes& a, const PartTimes& b) {
      return step_of(a, share) < step_of(b, share);
    });
  }
  return found.front();
}

}  // namespace tapestry::planning
