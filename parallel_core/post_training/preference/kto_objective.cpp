#include "parallel_core/post_training/preference/kto_objective.h"

#include <algorithm>
#include <array>
#include <utility>

#include "parallel_core/post_training/losses/preference_losses.h"
#include "parallel_core/post_training/preference/known_loss.h"
#include "parallel_core/post_training/preference/scored_completions.h"
#include "parallel_core/post_training/preference/step_scores.h"

namespace tapestry::post_training {

KtoObjective::KtoObjective(const AllConfig& config,
                           std::shared_ptr<const TaskExamples> examples,
                           References references,
                           const RowRoom& room)
    : config_(config.post_training_config),
      examples_(std::move(examples)),
      references_(std::move(references)),
      room_(room),
      overlap_p2p_(config.parallel_config.overlap_p2p_comm) {}

// The sum over this rank's.
double KtoObjective::log_ratios_of_mismatched(ParallelModel& model,
                                              const std::vector<data::Batch>& micro_batches) const {
  const StepScores scores(model, examples_->mismatched, micro_batches, room_, overlap_p2p_);
  double sum = 0;
  for (const data::Batch& batch : micro_batches) {
    for (const ScoredCompletion& completion : scored_completions(batch)) {
      sum += scores.sum(completion.number) - references_.mismatched->sum(completion.number);
    }
  }
  return sum;
}

void KtoObjective::begin_step(ParallelModel& model,
                              int64_t step,
                              const std::vector<data::Batch>& micro_batches,
                              bool training) {
  sums_.start_step();
  tokens_.add_step(step, micro_batches, training);
  std::array<double, 2> sums = {};
  for (const data::Batch& batch : micro_batches) {
    sums[0] += static_cast<double>(scored_completions(batch).size());
  }
  const bool has_point = config_.loss_type->front() == "kto";
  sums[1] = has_point ? log_ratios_of_mismatched(model, micro_batches) : 0;
  sum_over_step(sums);
  count_ = sums[0];
  kl_ = std::max(sums[1] / count_, 0.0);
}

Tensor KtoObjective::part(int64_t /*micro_batch*/, const data::Batch& batch, ModelOutput& output) {
  const TokenScores& scores = output.scores.value();
  const ScoreValues log_probs(scores.log_probs);
  const ScoreValues entropy(scores.entropy);
  const ScoreValues means(scores.logit_means);
  const double beta = config_.beta.value();
  std::vector<float> gradient(log_probs.span().size());
  double value = 0;
  for (const ScoredCompletion& completion : scored_completions(batch)) {
    const bool desirable =
        examples_->labels[static_cast<size_t>(examples_->unit_of(completion.number))] != 0;
    const double log_prob = log_probs.sum(completion);
    const double log_ratio = log_prob - references_.examples->sum(completion.number);
    const CompletionLoss loss = kto_loss(config_, log_ratio, desirable, kl_);
    value += loss.value / count_;
    std::fill(gradient.begin() + completion.begin, gradient.begin() + completion.end,
              static_cast<float>(loss.derivative / count_));
    const auto kind = desirable ? PreferenceSums::kChosen : PreferenceSums::kRejected;
    sums_.add_completion(kind, log_prob, beta * log_ratio);
    sums_.add_logits(kind, means.sum(completion), completion.count());
    sums_.add_entropy(entropy.sum(completion), completion.count());
  }
  return known_loss(scores.log_probs, value, gradient);
}

NamedValues KtoObjective::finish_step() {
  sums_.finish_step();
  NamedValues values = {
      {"kl", kl_}, {"entropy", sums_.mean_entropy()}, {"num_tokens", tokens_.total()}};
  sums_.append_logits(values);
  // A step may have examples of one kind alone.
  const bool has_chosen = sums_.count(PreferenceSums::kChosen) > 0;
  const bool has_rejected = sums_.count(PreferenceSums::kRejected) > 0;
  if (has_chosen) {
    values.emplace_back("rewards/chosen", sums_.mean_reward(PreferenceSums::kChosen));
    values.emplace_back("logps/chosen", sums_.mean_log_prob(PreferenceSums::kChosen));
  }
  if (has_rejected) {
    values.emplace_back("rewards/rejected", sums_.mean_reward(PreferenceSums::kRejected));
    values.emplace_back("logps/rejected", sums_.mean_log_prob(PreferenceSums::kRejected));
  }
  if (has_chosen && has_rejected) {
    values.emplace_back("rewards/margins", sums_.mean_reward(PreferenceSums::kChosen) -
                                               sums_.mean_reward(PreferenceSums::kRejected));
  }
  return values;
}

}  // namespace tapestry::post_training
