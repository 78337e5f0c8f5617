// The objective of task kto.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "parallel_core/config/config.h"
#include "parallel_core/post_training/examples/task_examples.h"
#include "parallel_core/post_training/preference/step_sums.h"
#include "parallel_core/post_training/reference/log_prob_table.h"
#include "parallel_core/post_training/rows/pack_sequences.h"
#include "parallel_core/training/step/step_objective.h"

namespace tapestry::post_training {

/// Kahneman-Tversky optimisation, as TRL's KTOTrainer (trl 1.16) has it. The loss is the mean over
/// the examples of the whole step. The reference point of loss type kto is the mean log ratio of
/// prompts with the completions of other examples of the step, at least 0, from a pass without
/// gradients before the step's, with the model in evaluation mode.
class KtoObjective final : public StepObjective {
 public:
  struct References {
    std::shared_ptr<const LogProbTable> examples;    ///< of the examples' sequences
    std::shared_ptr<const LogProbTable> mismatched;  ///< of TaskExamples::mismatched
  };
  KtoObjective(const AllConfig& config,
               std::shared_ptr<const TaskExamples> examples,
               References references,
               const RowRoom& room);

  void begin_step(ParallelModel& model,
                  int64_t step,
                  const std::vector<data::Batch>& micro_batches,
                  bool training) override;
  const TokenScoresRequest* scores() const override { return &request_; }
  Tensor part(int64_t micro_batch, const data::Batch& batch, ModelOutput& output) override;
  NamedValues finish_step() override;

 private:
  double log_ratios_of_mismatched(ParallelModel& model,
                                  const std::vector<data::Batch>& micro_batches) const;

  PostTrainingConfig config_;
  std::shared_ptr<const TaskExamples> examples_;
  References references_;
  RowRoom room_;
  bool overlap_p2p_;
  TokenScoresRequest request_ = {.entropy = true, .logit_means = true};
  // Of the step.
  double count_ = 0;  // of examples
  double kl_ = 0;
  PreferenceSums sums_;
  TrainedTokens tokens_;
};

}  // namespace tapestry::post_training
