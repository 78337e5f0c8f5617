// The objective of task dpo.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "parallel_core/config/config.h"
#include "parallel_core/post_training/examples/task_examples.h"
#include "parallel_core/post_training/losses/preference_losses.h"
#include "parallel_core/post_training/preference/scored_completions.h"
#include "parallel_core/post_training/preference/sorted_ratios.h"
#include "parallel_core/post_training/preference/step_sums.h"
#include "parallel_core/post_training/reference/log_prob_table.h"
#include "parallel_core/post_training/rows/pack_sequences.h"
#include "parallel_core/training/step/step_objective.h"

namespace tapestry::post_training {

/// Direct preference optimisation, as TRL's DPOTrainer (trl 1.16) has it. Means are over the pairs,
/// or tokens, of the whole step. Losses that compare sorted lists (aot, aot_unpaired) take one more
/// pass without gradients, with the model in evaluation mode, before the step's.
class DpoObjective final : public StepObjective {
 public:
  DpoObjective(const AllConfig& config,
               std::shared_ptr<const TaskExamples> examples,
               std::shared_ptr<const LogProbTable> reference,
               const RowRoom& room);

  void begin_step(ParallelModel& model,
                  int64_t step,
                  const std::vector<data::Batch>& micro_batches,
                  bool training) override;
  const TokenScoresRequest* scores() const override { return &request_; }
  Tensor part(int64_t micro_batch, const data::Batch& batch, ModelOutput& output) override;
  NamedValues finish_step() override;

 private:
  struct PairScores {
    PairLogProbs log_probs;
    double weight = 1;  ///< WPO's
    int64_t place = 0;  ///< among the rank's pairs of the step
  };
  struct Measured {
    ScoreValues entropy;
    ScoreValues logit_means;
    ScoreValues likeliest;
  };
  double discount(int64_t token, const ScoredPair& pair) const;
  double policy_sum(std::span<const float> log_probs,
                    const ScoredCompletion& completion,
                    const ScoredPair& pair) const;
  double reference_sum(const ScoredCompletion& completion, const ScoredPair& pair) const;
  PairLogProbs reference_of(const ScoredPair& pair) const;
  void sort_step(ParallelModel& model, const std::vector<data::Batch>& micro_batches);
  PairLoss loss_of(const PairScores& pair) const;
  void add_gradient(const ScoredCompletion& completion,
                    const ScoredPair& pair,
                    double derivative,
                    double of_token,
                    std::vector<float>& gradient) const;
  void measure(const ScoredPair& pair, const PairLogProbs& log_probs, const Measured& measured);

  PostTrainingConfig config_;
  std::shared_ptr<const TaskExamples> examples_;
  std::shared_ptr<const LogProbTable> reference_;
  RowRoom room_;
  bool overlap_p2p_;
  TokenScoresRequest request_;
  bool sorts_ = false;
  double sft_weight_ = 0;
  // Of the step.
  double pairs_ = 0;
  double chosen_tokens_ = 0;
  std::vector<int64_t> first_places_;  // of each micro-batch among the rank's pairs
  SortedRatios sorted_;
  PreferenceSums sums_;
  TrainedTokens tokens_;
};

}  // namespace tapestry::post_training
