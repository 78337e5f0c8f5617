// The objectives of tasks orpo and cpo, which need no reference.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel_core/config/config.h"
#include "parallel_core/post_training/losses/preference_losses.h"
#include "parallel_core/post_training/preference/scored_completions.h"
#include "parallel_core/post_training/preference/step_sums.h"
#include "parallel_core/training/step/step_objective.h"

namespace tapestry::post_training {

/// Odds ratio and contrastive preference optimisation, as TRL's ORPOTrainer and CPOTrainer (trl
/// 1.16) have them: a loss of pairs beside the cross entropy of what was chosen, ORPO's of prompts
/// and completions, CPO's of completions alone. Means are over the pairs, or tokens, of the whole
/// step. logits/.. are means over all positions that count in the rows (RowRoom), padding too where
/// that does.
class OddsObjective final : public StepObjective {
 public:
  explicit OddsObjective(const AllConfig& config);

  void begin_step(ParallelModel& model,
                  int64_t step,
                  const std::vector<data::Batch>& micro_batches,
                  bool training) override;
  const TokenScoresRequest* scores() const override { return &request_; }
  Tensor part(int64_t micro_batch, const data::Batch& batch, ModelOutput& output) override;
  NamedValues finish_step() override;

 private:
  /// A pair's loss, with what is logged of it.
  struct Terms {
    PairLoss loss;
    double chosen_reward = 0;
    double rejected_reward = 0;
    double log_odds = 0;
    double log_sigmoid_odds = 0;
  };
  Terms terms_of(const PairLogProbs& pair) const;
  int64_t first_learned(const ScoredCompletion& chosen) const;
  void measure_logits(PreferenceSums::Kind kind,
                      const ScoredCompletion& completion,
                      const data::Batch& batch,
                      const ScoreValues& means);

  PostTrainingConfig config_;
  bool is_orpo_;
  bool takes_means_;
  double nll_weight_;
  TokenScoresRequest request_ = {.logit_means = true};
  // Of the step.
  double pairs_ = 0;
  double learned_tokens_ = 0;         // of what was chosen
  std::vector<double> further_sums_;  // nll, log_odds, log_sigmoid_odds
  PreferenceSums sums_;
};

}  // namespace tapestry::post_training
