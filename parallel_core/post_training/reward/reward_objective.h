// The objective of task reward.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "parallel_core/config/config.h"
#include "parallel_core/post_training/examples/task_examples.h"
#include "parallel_core/post_training/preference/step_sums.h"
#include "parallel_core/training/step/step_objective.h"

namespace tapestry::post_training {

/// The loss of a pair of rewards and its derivatives: -ln sigma(chosen - rejected - margin)
/// (Bradley & Terry 1952), with a margin as Touvron et al. 2023 (arXiv:2307.09288) have it, plus
/// `centering` (chosen + rejected)^2 (Eisenstein et al. 2023, arXiv:2312.09244).
struct RewardLoss {
  double value = 0;
  double by_chosen = 0;
  double by_rejected = 0;
};
RewardLoss reward_loss(double chosen, double rejected, double margin, double centering);

/// The mean of that over the pairs of the whole step, as TRL's RewardTrainer (trl 1.16) has it. The
/// reward of a text is the value of its judged_token().
class RewardObjective final : public StepObjective {
 public:
  /// `pad`: the id that fills up rows. `tokens_before`: those that a run which goes on has trained
  /// on.
  RewardObjective(const AllConfig& config,
                  std::shared_ptr<const TaskExamples> examples,
                  int64_t pad,
                  double tokens_before = 0);

  void begin_step(ParallelModel& model,
                  int64_t step,
                  const std::vector<data::Batch>& micro_batches,
                  bool training) override;
  const TokenScoresRequest* scores() const override { return &request_; }
  Tensor part(int64_t micro_batch, const data::Batch& batch, ModelOutput& output) override;
  NamedValues finish_step() override;

 private:
  double margin_of(int64_t number) const;

  std::shared_ptr<const TaskExamples> examples_;
  double centering_;
  int64_t pad_;
  TokenScoresRequest request_ = {.values = true};
  TrainedTokens tokens_;
  // Of the step.
  double pairs_ = 0;                // of all ranks
  std::vector<size_t> first_pair_;  // of each micro-batch, among this rank's
  std::vector<double> rewards_;     // of each pair chosen, then rejected
};

}  // namespace tapestry::post_training
