#include "parallel_core/post_training/preference/dpo_objective.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "parallel_core/post_training/preference/known_loss.h"
#include "parallel_core/post_training/preference/step_scores.h"

namespace tapestry::post_training {

DpoObjective::DpoObjective(const AllConfig& config,
                           std::shared_ptr<const TaskExamples> examples,
                           std::shared_ptr<const LogProbTable> reference,
                           const RowRoom& room)
    : config_(config.post_training_config),
      examples_(std::move(examples)),
      reference_(std::move(reference)),
      room_(room),
      overlap_p2p_(config.parallel_config.overlap_p2p_comm) {
  request_ = {.entropy = true,
              .logit_means = true,
              .likeliest = true,
              .square_sums = config_.use_weighting};
  for (size_t i = 0; i < config_.loss_type->size(); ++i) {
    const std::string& type = (*config_.loss_type)[i];
    sorts_ = sorts_ || compares_sorted(type);
    sft_weight_ += type == "sft" ? loss_weight(config_, i) : 0;
  }
}

// What token number `token` of a completion counts in the pair (ld_alpha).
double DpoObjective::discount(int64_t token, const ScoredPair& pair) const {
  const int64_t shared = std::min(pair.chosen.count(), pair.rejected.count());
  return token < shared ? 1 : config_.ld_alpha.value_or(1);
}

double DpoObjective::policy_sum(std::span<const float> log_probs,
                                const ScoredCompletion& completion,
                                const ScoredPair& pair) const {
  if (!config_.ld_alpha) {
    return sum_of(log_probs, completion.begin, completion.end);
  }
  const int64_t shared = completion.begin + std::min(pair.chosen.count(), pair.rejected.count());
  return sum_of(log_probs, completion.begin, shared) +
         *config_.ld_alpha * sum_of(log_probs, shared, completion.end);
}

double DpoObjective::reference_sum(const ScoredCompletion& completion,
                                   const ScoredPair& pair) const {
  const int64_t sequence = completion.number;
  if (!config_.ld_alpha) {
    return reference_->sum(sequence);
  }
  const int64_t shared = std::min(pair.chosen.count(), pair.rejected.count());
  return reference_->sum(sequence, 0, shared) +
         *config_.ld_alpha * reference_->sum(sequence, shared, completion.count());
}

// Without the policy's.
PairLogProbs DpoObjective::reference_of(const ScoredPair& pair) const {
  return {.reference_chosen = reference_sum(pair.chosen, pair),
          .reference_rejected = reference_sum(pair.rejected, pair),
          .chosen_tokens = pair.chosen.count(),
          .rejected_tokens = pair.rejected.count()};
}

void DpoObjective::begin_step(ParallelModel& model,
                              int64_t step,
                              const std::vector<data::Batch>& micro_batches,
                              bool training) {
  sums_.start_step();
  tokens_.add_step(step, micro_batches, training);
  std::array<double, 2> counts = {};
  first_places_.clear();
  int64_t place = 0;
  for (const data::Batch& batch : micro_batches) {
    first_places_.push_back(place);
    for (const ScoredPair& pair : scored_pairs(batch)) {
      counts[1] += static_cast<double>(pair.chosen.count());
      ++place;
    }
  }
  counts[0] = static_cast<double>(place);
  sum_over_step(counts);
  pairs_ = counts[0];
  chosen_tokens_ = std::max(counts[1], 1.0);
  if (sorts_) {
    sort_step(model, micro_batches);
  }
}

void DpoObjective::sort_step(ParallelModel& model, const std::vector<data::Batch>& micro_batches) {
  const StepScores scores(model, examples_->sequences, micro_batches, room_, overlap_p2p_);
  std::vector<PairLogProbs> own;
  for (size_t i = 0; i < micro_batches.size(); ++i) {
    for (const ScoredPair& pair : scored_pairs(micro_batches[i])) {
      const auto sum = [&](const ScoredCompletion& completion) {
        const std::span<const float> tokens = scores.tokens(completion.number);
        ScoredCompletion there = completion;
        there.begin = 0;
        there.end = std::ssize(tokens);
        return policy_sum(tokens, there, pair);
      };
      PairLogProbs log_probs = reference_of(pair);
      log_probs.chosen = sum(pair.chosen);
      log_probs.rejected = sum(pair.rejected);
      own.push_back(log_probs);
    }
  }
  sorted_ = SortedRatios(own);
}

PairLoss DpoObjective::loss_of(const PairScores& pair) const {
  PairLoss sum = weighted_dpo_loss(config_, pair.log_probs);
  for (size_t i = 0; sorts_ && i < config_.loss_type->size(); ++i) {
    const std::string& type = (*config_.loss_type)[i];
    if (compares_sorted(type)) {
      const PairLoss loss =
          sorted_.loss(type == "aot_unpaired", config_, pair.place, pair.log_probs);
      const double weight = loss_weight(config_, i);
      sum.value += weight * loss.value;
      sum.by_chosen += weight * loss.by_chosen;
      sum.by_rejected += weight * loss.by_rejected;
    }
  }
  const double share = pair.weight / pairs_;
  return {share * sum.value, share * sum.by_chosen, share * sum.by_rejected};
}

// `derivative` is that by the completion's log-probability, `of_token` by each of its tokens'.
void DpoObjective::add_gradient(const ScoredCompletion& completion,
                                const ScoredPair& pair,
                                double derivative,
                                double of_token,
                                std::vector<float>& gradient) const {
  for (int64_t t = 0; t < completion.count(); ++t) {
    gradient[static_cast<size_t>(completion.begin + t)] =
        static_cast<float>(derivative * discount(t, pair) + of_token);
  }
}

void DpoObjective::measure(const ScoredPair& pair,
                           const PairLogProbs& log_probs,
                           const Measured& measured) {
  const double beta = config_.beta.value();
  const auto measure_one = [&](PreferenceSums::Kind kind, const ScoredCompletion& completion,
                               double log_prob, double reference) {
    sums_.add_completion(kind, log_prob, beta * (log_prob - reference));
    sums_.add_logits(kind, measured.logit_means.sum(completion), completion.count());
    sums_.add_entropy(measured.entropy.sum(completion), completion.count());
  };
  measure_one(PreferenceSums::kChosen, pair.chosen, log_probs.chosen, log_probs.reference_chosen);
  measure_one(PreferenceSums::kRejected, pair.rejected, log_probs.rejected,
              log_probs.reference_rejected);
  sums_.add_likeliest(measured.likeliest.sum(pair.chosen), pair.chosen.count());
  sums_.add_right_order(log_probs.chosen - log_probs.reference_chosen >
                        log_probs.rejected - log_probs.reference_rejected);
}

Tensor DpoObjective::part(int64_t micro_batch, const data::Batch& batch, ModelOutput& output) {
  const TokenScores& scores = output.scores.value();
  const ScoreValues log_probs(scores.log_probs);
  const Measured measured = {.entropy = ScoreValues(scores.entropy),
                             .logit_means = ScoreValues(scores.logit_means),
                             .likeliest = ScoreValues(scores.likeliest)};
  const ScoreValues squares =
      config_.use_weighting ? ScoreValues(scores.square_sums) : ScoreValues();
  std::vector<float> gradient(log_probs.span().size());
  double value = 0;
  PairScores of_pair{.place = first_places_[static_cast<size_t>(micro_batch)]};
  for (const ScoredPair& pair : scored_pairs(batch)) {
    of_pair.log_probs = reference_of(pair);
    of_pair.log_probs.chosen = policy_sum(log_probs.span(), pair.chosen, pair);
    of_pair.log_probs.rejected = policy_sum(log_probs.span(), pair.rejected, pair);
    if (config_.use_weighting) {
      const auto mean = [&](const ScoredCompletion& c) {
        const double sum = log_probs.sum(c) - squares.sum(c);
        return sum / static_cast<double>(std::max<int64_t>(c.count(), 1));
      };
      of_pair.weight = std::exp(mean(pair.chosen) + mean(pair.rejected));
    }
    const PairLoss loss = loss_of(of_pair);
    const double of_token = -sft_weight_ / chosen_tokens_;
    value += loss.value + of_token * log_probs.sum(pair.chosen);
    add_gradient(pair.chosen, pair, loss.by_chosen, of_token, gradient);
    add_gradient(pair.rejected, pair, loss.by_rejected, 0, gradient);
    measure(pair, of_pair.log_probs, measured);
    ++of_pair.place;
  }
  return known_loss(scores.log_probs, value, gradient);
}

NamedValues DpoObjective::finish_step() {
  sums_.finish_step();
  NamedValues values = {{"entropy", sums_.mean_entropy()}, {"num_tokens", tokens_.total()}};
  sums_.append_logits(values);
  values.emplace_back("mean_token_accuracy", sums_.accuracy());
  sums_.append_pairs(values);
  return values;
}

}  // namespace tapestry::post_training
