// One of the trainings whose layouts are compared.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "diagnosis/verify/verify_layout.h"
#include "optim/lr_scheduler.h"
#include "optim/optimizer.h"
#include "parallel_core/config/config.h"
#include "parallel_core/data/data_source.h"
#include "parallel_core/distributed/distributed_data_parallel.h"
#include "parallel_core/training/step/train_one_step.h"

namespace tapestry {

/// A training on the current rank, whose groups are made. The arguments outlive it.
struct ComparedTraining {
  ComparedTraining(const AllConfig& config_, const VerifyOptions& options_, bool in_layout);

  /// The weights are in: makes the rest, the schedule at `position`.
  void start(optim::Schedule::Position position);

  /// The rank's micro-batches of step number `step` (from 0).
  std::vector<data::Batch> batches(int64_t step) const;

  const AllConfig& config;
  const VerifyOptions& options;
  AllConfig step_config;  ///< of optimizer, schedule and step
  std::unique_ptr<data::DataSource> source;
  std::unique_ptr<ParallelModel> model;
  std::unique_ptr<DistributedDataParallel> data_parallel;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<optim::Schedule> schedule;
  std::unique_ptr<TrainOneStepCell> cell;
};

/// True if activations and gradients of the step (from 1) are compared.
inline bool is_looked_at(const VerifyOptions& options, int64_t step) {
  return options.every_step || step == 1;
}

}  // namespace tapestry
