#include "parallel_core/post_training/reward/reward_objective.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "parallel_core/pipeline_parallel/collect.h"
#include "parallel_core/post_training/preference/known_loss.h"
#include "parallel_core/post_training/preference/scored_completions.h"
#include "parallel_core/post_training/reward/last_token.h"

namespace tapestry::post_training {

RewardLoss reward_loss(double chosen, double rejected, double margin, double centering) {
  const double lead = chosen - rejected - margin;
  // ln(1 + e^-lead) without overflow.
  const double loss = std::max(-lead, 0.0) + std::log1p(std::exp(-std::abs(lead)));
  const double wrong = lead >= 0 ? std::exp(-lead) / (1 + std::exp(-lead))
                                 : 1 / (1 + std::exp(lead));  // sigma(-lead)
  const double sum = chosen + rejected;
  return {.value = loss + centering * sum * sum,
          .by_chosen = -wrong + 2 * centering * sum,
          .by_rejected = wrong + 2 * centering * sum};
}

RewardObjective::RewardObjective(const AllConfig& config,
                                 std::shared_ptr<const TaskExamples> examples,
                                 int64_t pad,
                                 double tokens_before)
    : examples_(std::move(examples)),
      centering_(config.post_training_config.center_rewards_coefficient.value_or(0)),
      pad_(pad),
      tokens_(tokens_before) {}

void RewardObjective::begin_step(ParallelModel& /*model*/,
                                 int64_t step,
                                 const std::vector<data::Batch>& micro_batches,
                                 bool training) {
  tokens_.add_step(step, micro_batches, training);
  first_pair_.clear();
  size_t own = 0;
  for (const data::Batch& batch : micro_batches) {
    first_pair_.push_back(own);
    own += scored_pairs(batch).size();
  }
  rewards_.assign(2 * own, 0);
  std::array<double, 1> all = {static_cast<double>(own)};
  sum_over_step(all);
  pairs_ = all[0];
}

double RewardObjective::margin_of(int64_t number) const {
  return examples_->margins.empty()
             ? 0
             : examples_->margins[static_cast<size_t>(examples_->unit_of(number))];
}

Tensor RewardObjective::part(int64_t micro_batch, const data::Batch& batch, ModelOutput& output) {
  const Tensor& values = output.scores.value().values;
  const ScoreValues known(values);
  std::vector<float> gradient(known.span().size());
  const auto place_of = [&](const ScoredCompletion& text) {
    const auto ids =
        std::span(batch.tokens)
            .subspan(static_cast<size_t>(text.first), static_cast<size_t>(text.tokens));
    return static_cast<size_t>(text.first + judged_token(ids, pad_));
  };
  double value = 0;
  size_t at = 2 * first_pair_[static_cast<size_t>(micro_batch)];
  for (const ScoredPair& pair : scored_pairs(batch)) {
    const size_t chosen = place_of(pair.chosen);
    const size_t rejected = place_of(pair.rejected);
    const double of_chosen = known.span()[chosen];
    const double of_rejected = known.span()[rejected];
    const RewardLoss loss =
        reward_loss(of_chosen, of_rejected, margin_of(pair.chosen.number), centering_);
    value += loss.value / pairs_;
    gradient[chosen] += static_cast<float>(loss.by_chosen / pairs_);
    gradient[rejected] += static_cast<float>(loss.by_rejected / pairs_);
    rewards_[at++] = of_chosen;
    rewards_[at++] = of_rejected;
  }
  return known_loss(values, value, gradient);
}

NamedValues RewardObjective::finish_step() {
  sum_over_pipeline(rewards_);  // the last stage alone has any
  const std::vector<double> all = gather_over_step(rewards_).values;
  double least = std::numeric_limits<double>::infinity();
  double most = -least;
  double sum = 0;
  double right = 0;
  double margin = 0;
  for (size_t i = 0; i + 1 < all.size(); i += 2) {
    const double chosen = all[i];
    const double rejected = all[i + 1];
    least = std::min({least, chosen, rejected});
    most = std::max({most, chosen, rejected});
    sum += chosen + rejected;
    right += chosen > rejected ? 1 : 0;
    margin += chosen - rejected;
  }
  return {{"min_reward", least},       {"mean_reward", sum / (2 * pairs_)},
          {"max_reward", most},        {"accuracy", right / pairs_},
          {"margin", margin / pairs_}, {"num_tokens", tokens_.total()}};
}

}  // namespace tapestry::post_training
