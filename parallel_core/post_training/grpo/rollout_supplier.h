// Where the completions of a run come from: a file, or the policy itself.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "parallel_core/post_training/grpo/rollout_batch.h"
#include "parallel_core/training/run_task.h"

namespace tapestry::post_training {

/// On every rank one, which make the same calls in the same order: all are collective.
class RolloutSupplier {
 public:
  RolloutSupplier() = default;
  RolloutSupplier(const RolloutSupplier&) = delete;
  RolloutSupplier& operator=(const RolloutSupplier&) = delete;
  virtual ~RolloutSupplier() = default;

  /// Batch number `number` (from 0) of the run's data, generation_batch_size completions with their
  /// advantages. Asked for when the first step that trains on it draws its rows, in that order,
  /// but for earlier ones, which a diagnosis may ask for again. Valid until another one is asked
  /// for.
  virtual const RolloutBatch& batch(int64_t number) = 0;
  /// Whether batch() needs the model, so that none can be had before set_model().
  virtual bool needs_model() const = 0;
  /// How often all prompts were drawn before completion `first` of the run's data.
  virtual int64_t epoch(int64_t first) const = 0;

  /// RunTask::prepare, for values of the reference.
  virtual void prepare(const AllConfig& /*config*/, const ModelBeforeTraining& /*model*/) {}
  /// The model that is trained, before the first batch that needs it. Outlives the supplier's use.
  virtual void set_model(ParallelModel& /*model*/) {}
  /// RunTask::observers.
  virtual std::vector<std::unique_ptr<StepObserver>> observers(const AllConfig& /*config*/,
                                                               TrainOneStepCell& /*cell*/) {
    return {};
  }

  /// For the log.
  virtual std::string description() const = 0;
  /// Of prompts, stored completions and whatever else makes batch k what it is: checkpoints keep
  /// it, and a run that goes on with another one is refused.
  virtual std::string fingerprint() const = 0;
};

/// How the completions of a run are shared out: RolloutSupplier::batch() gives generation_batch
/// completions, which steps_per_generation steps train on in turn, num_iterations times over.
struct GenerationPlan {
  int64_t generation_batch = 0;  ///< completions
  int64_t steps_per_generation = 1;
  int64_t num_iterations = 1;

  /// Of a resolved configuration on so many data-parallel ranks.
  static GenerationPlan of(const AllConfig& config, int64_t data_parallel_size);

  int64_t steps() const { return steps_per_generation * num_iterations; }
  int64_t batch_of(int64_t step) const { return step / steps(); }
  /// Which of the batch's parts step `step` (from 0) trains on, from 0 to steps_per_generation - 1.
  int64_t part_of(int64_t step) const { return step % steps_per_generation; }
};

}  // namespace tapestry::post_training
