// Knowledge distillation: a student learns a teacher's distributions.
#pragma once

#include <memory>
#include <vector>

#include "parallel_core/post_training/distil/teacher.h"
#include "parallel_core/post_training/preference/step_sums.h"
#include "parallel_core/training/step/step_objective.h"

namespace tapestry::post_training {

struct DistilOptions {
  double temperature = 1;  ///< of both distributions; the loss is not multiplied by its square
  double beta = 1;         ///< 0: forward, 1: reverse divergence
  bool add_tail = true;    ///< of a teacher's likeliest tokens
  double data_loss_weight = 0;
};

/// (1 - data_loss_weight) * divergence + data_loss_weight * cross entropy, both means over the
/// tokens of completions of the whole step: all micro-batches of all data-parallel ranks. Source:
/// trl/trainer/distillation_trainer.py (trl 1.16); for likeliest tokens
/// trl/experimental/server_distillation.
///
/// Measures divergence, data_loss and entropy, means over the same tokens at a temperature of 1 but
/// for the divergence, and num_tokens, those that the run has trained on.
class DistilObjective final : public StepObjective {
 public:
  DistilObjective(const DistilOptions& options, std::unique_ptr<Teacher> teacher);

  void begin_step(ParallelModel& model,
                  int64_t step,
                  const std::vector<data::Batch>& micro_batches,
                  bool training) override;
  const TokenScoresRequest* scores() const override { return &request_; }
  Tensor part(int64_t micro_batch, const data::Batch& batch, ModelOutput& output) override;
  NamedValues finish_step() override;

 private:
  double data_loss_weight_;
  std::unique_ptr<Teacher> teacher_;
  DivergenceRequest divergence_;
  TokenScoresRequest request_;
  double tokens_ = 0;  // of the whole step
  TrainedTokens trained_;
  std::vector<double> sums_;  // of this rank: divergence, cross entropy, entropy
};

}  // namespace tapestry::post_training
