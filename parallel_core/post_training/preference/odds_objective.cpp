#include "parallel_core/post_training/preference/odds_objective.h"

#include <algorithm>
#include <array>

#include "parallel_core/pipeline_parallel/collect.h"
#include "parallel_core/post_training/preference/known_loss.h"

namespace tapestry::post_training {

namespace {

enum : uint8_t { kNllSum, kLogOddsSum, kLogSigmoidSum, kFurtherSums };

double mean_divisor(const ScoredCompletion& completion) {
  return static_cast<double>(std::max<int64_t>(completion.count(), 1));
}

}  // namespace

OddsObjective::OddsObjective(const AllConfig& config)
    : config_(config.post_training_config),
      is_orpo_(config_.task == "orpo"),
      takes_means_(is_orpo_ || cpo_takes_means(config_.loss_type->front())),
      nll_weight_(is_orpo_ ? 1 : cpo_nll_weight(config_)) {}

// From where on the chosen sequence's cross entropy counts.
int64_t OddsObjective::first_learned(const ScoredCompletion& chosen) const {
  return is_orpo_ ? chosen.first : chosen.begin;
}

void OddsObjective::begin_step(ParallelModel& /*model*/,
                               int64_t /*step*/,
                               const std::vector<data::Batch>& micro_batches,
                               bool /*training*/) {
  sums_.start_step();
  further_sums_.assign(kFurtherSums, 0);
  std::array<double, 2> counts = {};
  for (const data::Batch& batch : micro_batches) {
    for (const ScoredPair& pair : scored_pairs(batch)) {
      counts[0] += 1;
      counts[1] += static_cast<double>(pair.chosen.end - first_learned(pair.chosen));
    }
  }
  sum_over_step(counts);
  pairs_ = counts[0];
  learned_tokens_ = std::max(counts[1], 1.0);
}

OddsObjective::Terms OddsObjective::terms_of(const PairLogProbs& pair) const {
  const double beta = config_.beta.value();
  if (!is_orpo_) {
    const CpoLoss cpo = cpo_loss(config_, pair);
    return {.loss = cpo.loss,
            .chosen_reward = beta * cpo.chosen,
            .rejected_reward = beta * cpo.rejected};
  }
  const OrpoLoss orpo = orpo_loss(beta, pair);
  const auto reward = [beta](double sum, int64_t tokens) {
    return beta * sum / static_cast<double>(std::max<int64_t>(tokens, 1));
  };
  return {.loss = orpo.loss,
          .chosen_reward = reward(pair.chosen, pair.chosen_tokens),
          .rejected_reward = reward(pair.rejected, pair.rejected_tokens),
          .log_odds = orpo.log_odds,
          .log_sigmoid_odds = orpo.log_sigmoid_odds};
}

void OddsObjective::measure_logits(PreferenceSums::Kind kind,
                                   const ScoredCompletion& completion,
                                   const data::Batch& batch,
                                   const ScoreValues& means) {
  const auto first = batch.loss_mask.begin() + completion.first;
  const auto last = batch.loss_mask.begin() + completion.last;
  const int64_t positions = std::count_if(first, last, [](float counts) { return counts > 0; });
  sums_.add_logits(kind, means.sum(completion.first, completion.last), positions);
}

Tensor OddsObjective::part(int64_t /*micro_batch*/, const data::Batch& batch, ModelOutput& output) {
  const TokenScores& scores = output.scores.value();
  const ScoreValues log_probs(scores.log_probs);
  const ScoreValues means(scores.logit_means);
  std::vector<float> gradient(log_probs.span().size());
  const auto add_gradient = [&](int64_t begin, int64_t end, double of_token) {
    for (int64_t t = begin; t < end; ++t) {
      gradient[static_cast<size_t>(t)] += static_cast<float>(of_token);
    }
  };
  double value = 0;
  for (const ScoredPair& pair : scored_pairs(batch)) {
    const PairLogProbs of_pair = {.chosen = log_probs.sum(pair.chosen),
                                  .rejected = log_probs.sum(pair.rejected),
                                  .chosen_tokens = pair.chosen.count(),
                                  .rejected_tokens = pair.rejected.count()};
    const Terms terms = terms_of(of_pair);
    const int64_t learned = first_learned(pair.chosen);
    const double nll = nll_weight_ > 0 ? -log_probs.sum(learned, pair.chosen.end) : 0;
    value += terms.loss.value / pairs_ + nll_weight_ * nll / learned_tokens_;
    add_gradient(pair.chosen.begin, pair.chosen.end, terms.loss.by_chosen / pairs_);
    add_gradient(pair.rejected.begin, pair.rejected.end, terms.loss.by_rejected / pairs_);
    add_gradient(learned, pair.chosen.end, -nll_weight_ / learned_tokens_);

    const double chosen_mean = of_pair.chosen / (takes_means_ ? mean_divisor(pair.chosen) : 1);
    const double rejected_mean =
        of_pair.rejected / (takes_means_ ? mean_divisor(pair.rejected) : 1);
    sums_.add_completion(PreferenceSums::kChosen, chosen_mean, terms.chosen_reward);
    sums_.add_completion(PreferenceSums::kRejected, rejected_mean, terms.rejected_reward);
    sums_.add_right_order(terms.chosen_reward > terms.rejected_reward);
    measure_logits(PreferenceSums::kChosen, pair.chosen, batch, means);
    measure_logits(PreferenceSums::kRejected, pair.rejected, batch, means);
    further_sums_[kNllSum] += nll;
    further_sums_[kLogOddsSum] += terms.log_odds;
    further_sums_[kLogSigmoidSum] += terms.log_sigmoid_odds;
  }
  return known_loss(scores.log_probs, value, gradient);
}

NamedValues OddsObjective::finish_step() {
  sums_.finish_step();
  sum_over_pipeline(further_sums_);
  sum_over_step(further_sums_);
  NamedValues values;
  sums_.append_pairs(values);
  sums_.append_logits(values);
  values.emplace_back("nll_loss", further_sums_[kNllSum] / learned_tokens_);
  if (is_orpo_) {
    values.emplace_back("log_odds_ratio", further_sums_[kLogSigmoidSum] / pairs_);
    values.emplace_back("log_odds_chosen", further_sums_[kLogOddsSum] / pairs_);
  }
  return values;
}

}  // namespace tapestry::post_training
