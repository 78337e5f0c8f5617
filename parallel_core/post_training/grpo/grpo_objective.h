// The step of a policy that learns from completions and their advantages.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "autograd/kernels/machine/one_order.h"
#include "parallel_core/config/config.h"
#include "parallel_core/post_training/grpo/policy_loss.h"
#include "parallel_core/post_training/grpo/rollout_source.h"
#include "parallel_core/training/step/step_objective.h"

namespace tapestry::post_training {

/// This rank's rows of a step (BatchPosition::step), with which a source goes on as it has begun.
using RowsOfStep = std::function<std::vector<data::Batch>(int64_t step)>;

/// Minimises PolicyLoss over the completions that a RolloutSource has drawn. The sum over tokens is
/// divided, for all micro-batches of all data-parallel ranks at once, by
///
///   grpo, sapo           each completion's tokens, and the completions of the step
///   bnpo                 the tokens of the step
///   dr_grpo              the completions of the step * max_completion_length
///   dapo, cispo, vespo   the tokens of the generation batch * the step's share of its completions
///   luspo                the completions of the step
///
/// where masked completions (mask_truncated_completions) have no tokens, but count as completions.
/// Then entropy_coef * the mean entropy of the tokens that count is taken off. With
/// top_entropy_quantile q below 1 these are the tokens whose entropy is at least the (1 - q)
/// quantile (linear between two values) of all tokens of the step, found in a pass of its own.
///
/// Log-probabilities "when it was sampled" that a batch does not have are those of the first step
/// that trains on it; with several steps per generation those of a pass before the first one.
/// Of completions that the policy has sampled, the first step that trains on them tells how far the
/// sampler's log-probabilities lie from its own (sampling/sampling_logp_difference/{mean,max}), and
/// with zero_mismatch all passes are in the sampler's OneOrderScope.
/// finish_step() gives the batch's metrics and kl, entropy, clip_ratio/*, cispo_clip_ratio,
/// vespo/phi_seq_mean, policy_loss, entropy_coef as TRL logs them.
class GrpoObjective final : public StepObjective {
 public:
  GrpoObjective(const AllConfig& config,
                const GenerationPlan& plan,
                std::shared_ptr<const DrawnRollouts> drawn,
                RowsOfStep rows_of_step);

  /// ValueError for an evaluation, and where a run goes on in the middle of a batch whose old
  /// log-probabilities nobody has kept.
  void begin_step(ParallelModel& model,
                  int64_t step,
                  const std::vector<data::Batch>& micro_batches,
                  bool training) override;
  const TokenScoresRequest* scores() const override { return &request_; }
  Tensor part(int64_t micro_batch, const data::Batch& batch, ModelOutput& output) override;
  NamedValues finish_step() override;

 private:
  // Of the whole step, on all ranks.
  struct Counts {
    double completions = 0;
    double tokens = 0;      // that are not masked
    double kept = 0;        // of these: whose policy terms count
    double generation = 0;  // tokens of the generation batch
  };
  // Of this rank's completions, or of all.
  struct Sums {
    double policy_loss = 0;
    double kl = 0;
    double entropy = 0;
    double ratios = 0;
    double clipped_low = 0;
    double clipped_high = 0;
    double phi = 0;
    double mismatch = 0;
  };

  bool is_masked(int64_t completion) const;
  double weight_of(int64_t tokens) const;
  void count(const std::vector<data::Batch>& micro_batches);
  void find_old(ParallelModel& model);
  void find_kept(ParallelModel& model, const std::vector<data::Batch>& micro_batches);
  void note_shares(const CompletionPolicyLoss& loss);

  PostTrainingConfig config_;
  GenerationPlan plan_;
  PolicyLoss loss_;
  TokenScoresRequest request_;
  std::shared_ptr<const DrawnRollouts> drawn_;
  RowsOfStep rows_of_step_;

  const RolloutBatch* batch_ = nullptr;
  Counts counts_;
  Sums sums_;
  double least_low_ = 0;  // share of a completion's ratios that were clipped below
  double most_high_ = 0;  // and above
  double most_mismatch_ = 0;
  bool shows_mismatch_ = false;  // the step's weights are those that its batch was sampled with
  std::optional<OneOrderScope> one_order_;  // from begin_step to finish_step
  std::vector<std::vector<uint8_t>> kept_;  // by completion; empty: all of its tokens
  int64_t recorded_batch_ = -1;             // whose old log-probabilities are in recorded_
  std::vector<std::vector<double>> recorded_;
};

}  // namespace tapestry::post_training
