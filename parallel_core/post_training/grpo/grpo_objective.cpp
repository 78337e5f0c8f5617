#include "parallel_core/post_training/grpo/grpo_objective.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/comm/sum_over.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/pipeline_parallel/collect.h"
#include "parallel_core/post_training/grpo/entropy_quantile.h"
#include "parallel_core/post_training/objective/completion_scores.h"
#include "parallel_core/post_training/objective/known_gradient.h"

namespace tapestry::post_training {

namespace {

constexpr double kNoShare = std::numeric_limits<double>::infinity();

bool divides_by_generation(const std::string& loss) {
  return loss == "dapo" || loss == "cispo" || loss == "vespo";
}

// The value that is least, or largest, on any data-parallel rank.
double extreme_over_ranks(double value, ReduceOp op) {
  if (!model_parallel_is_initialized()) {
    return value;
  }
  const Tensor shared = full({1}, value, kFloat64);
  get_data_parallel_group().all_reduce(shared, op);
  return shared.item();
}

void sum_over_data_parallel(std::span<double> values) {
  if (model_parallel_is_initialized()) {
    sum_over(get_data_parallel_group(), values);
  }
}

double ratio_of(double part, double whole) { return whole > 0 ? part / whole : 0; }

}  // namespace

GrpoObjective::GrpoObjective(const AllConfig& config,
                             const GenerationPlan& plan,
                             std::shared_ptr<const DrawnRollouts> drawn,
                             RowsOfStep rows_of_step)
    : config_(config.post_training_config),
      plan_(plan),
      loss_(config_),
      request_{.temperature = config_.temperature, .entropy = true},
      drawn_(std::move(drawn)),
      rows_of_step_(std::move(rows_of_step)) {}

bool GrpoObjective::is_masked(int64_t completion) const {
  return config_.mask_truncated_completions && batch_->truncated[static_cast<size_t>(completion)];
}

void GrpoObjective::count(const std::vector<data::Batch>& micro_batches) {
  std::array<double, 2> own = {};
  for (const data::Batch& batch : micro_batches) {
    for (const CompletionPlace& place : completion_places(batch)) {
      own[0] += 1;
      own[1] += is_masked(place.number) ? 0 : static_cast<double>(place.count);
    }
  }
  sum_over_data_parallel(own);
  counts_ = {.completions = own[0], .tokens = own[1], .kept = own[1]};
  for (int64_t i = 0; i < batch_->completions.size(); ++i) {
    counts_.generation +=
        is_masked(i) ? 0 : static_cast<double>(batch_->completions.completion_tokens(i));
  }
}

// What the sum over a completion's tokens is multiplied by.
double GrpoObjective::weight_of(int64_t tokens) const {
  const std::string& loss = config_.loss_type->front();
  const double completions = std::max(counts_.completions, 1.0);
  if (loss == "bnpo") {
    return 1 / std::max(counts_.tokens, 1.0);
  }
  if (loss == "dr_grpo") {
    return 1 / (completions * static_cast<double>(config_.max_completion_length));
  }
  if (divides_by_generation(loss)) {
    const double share = completions / static_cast<double>(batch_->completions.size());
    return 1 / (std::max(counts_.generation, 1.0) * share);
  }
  const double each = loss == "luspo" ? 1 : static_cast<double>(std::max<int64_t>(tokens, 1));
  return 1 / (completions * each);
}

// The old log-probabilities of a batch without such, before any of its steps has changed the
// weights. Of a single step per generation they come with its own first pass.
void GrpoObjective::find_old(ParallelModel& model) {
  if (!batch_->old_log_probs.empty() || plan_.steps() == 1) {
    return;
  }
  const int64_t step = drawn_->step;
  const int64_t number = plan_.batch_of(step);
  if (number == recorded_batch_) {
    return;
  }
  const int64_t first = number * plan_.steps();
  check<ValueError>(
      step == first, "the completions of step ", step + 1,
      " have no log-probabilities of when they were sampled, and those of the first pass over them "
      "(step ",
      first + 1, ") went with the run that has ended; go on from a checkpoint of a multiple of ",
      plan_.steps(), " steps, or give \"logprobs\" in the rollouts");
  recorded_batch_ = number;
  recorded_.assign(static_cast<size_t>(batch_->completions.size()), {});
  if (plan_.steps_per_generation == 1) {
    return;
  }
  for (int64_t part = 0; part < plan_.steps_per_generation; ++part) {
    const std::vector<data::Batch> rows = rows_of_step_(first + part);
    score_without_gradients(model, rows, {.temperature = config_.temperature},
                            [&](int64_t micro_batch, const TokenScores& scores) {
                              for (const CompletionPlace& place :
                                   completion_places(rows[static_cast<size_t>(micro_batch)])) {
                                recorded_[static_cast<size_t>(place.number)] =
                                    values_at(scores.log_probs, place);
                              }
                            });
  }
  (void)rows_of_step_(step);  // the source is where it was
}

// Which tokens have the highest entropies of the step.
void GrpoObjective::find_kept(ParallelModel& model, const std::vector<data::Batch>& micro_batches) {
  kept_.assign(static_cast<size_t>(batch_->completions.size()), {});
  if (config_.top_entropy_quantile >= 1) {
    return;
  }
  int64_t own = 0;
  for (const data::Batch& batch : micro_batches) {
    for (const CompletionPlace& place : completion_places(batch)) {
      own += is_masked(place.number) ? 0 : place.count;
    }
  }
  std::vector<std::pair<int64_t, std::vector<double>>> entropies;
  score_without_gradients(
      model, micro_batches, {.temperature = config_.temperature, .entropy = true},
      [&](int64_t micro_batch, const TokenScores& scores) {
        for (const CompletionPlace& place :
             completion_places(micro_batches[static_cast<size_t>(micro_batch)])) {
          if (!is_masked(place.number)) {
            entropies.emplace_back(place.number, values_at(scores.entropy, place));
          }
        }
      });
  std::vector<double> all;
  for (const auto& [number, values] : entropies) {
    all.insert(all.end(), values.begin(), values.end());
  }
  all.resize(static_cast<size_t>(own));  // zeros on stages that see none
  const double threshold =
      quantile(gather_over_data_parallel(all), 1 - config_.top_entropy_quantile);
  std::array<double, 1> kept = {};
  for (const auto& [number, values] : entropies) {
    std::vector<uint8_t>& of_completion = kept_[static_cast<size_t>(number)];
    for (const double value : values) {
      of_completion.push_back(value >= threshold ? 1 : 0);
      kept[0] += of_completion.back();
    }
  }
  sum_over_pipeline(kept);
  sum_over_data_parallel(kept);
  counts_.kept = kept[0];
}

void GrpoObjective::begin_step(ParallelModel& model,
                               int64_t /*step*/,
                               const std::vector<data::Batch>& micro_batches,
                               bool training) {
  check<ValueError>(training && drawn_->batch != nullptr,
                    "post_training_config.task grpo has no evaluation; leave eval_interval out");
  batch_ = drawn_->batch;
  const bool is_sampled = !config_.rollouts.has_value();
  shows_mismatch_ =
      is_sampled && !batch_->old_log_probs.empty() && drawn_->step % plan_.steps() == 0;
  most_mismatch_ = 0;
  one_order_.reset();
  if (is_sampled && config_.zero_mismatch) {
    one_order_.emplace();
  }
  find_old(model);
  sums_ = {};
  least_low_ = kNoShare;
  most_high_ = -kNoShare;
  count(micro_batches);
  find_kept(model, micro_batches);
}

void GrpoObjective::note_shares(const CompletionPolicyLoss& loss) {
  sums_.kl += loss.kl;
  sums_.ratios += loss.ratios;
  sums_.clipped_low += loss.clipped_low;
  sums_.clipped_high += loss.clipped_high;
  sums_.phi += loss.phi;
  if (loss.ratios > 0) {
    least_low_ = std::min(least_low_, loss.clipped_low / loss.ratios);
    most_high_ = std::max(most_high_, loss.clipped_high / loss.ratios);
  }
}

Tensor GrpoObjective::part(int64_t /*micro_batch*/, const data::Batch& batch, ModelOutput& output) {
  check<ValueError>(output.scores.has_value(),
                    "post_training_config.task grpo: the model tells no scores of single tokens");
  const TokenScores& scores = *output.scores;
  const bool has_bonus = config_.entropy_coef > 0;
  Tensor by_log_probs = zeros(scores.log_probs.shape(), kFloat32);
  Tensor by_entropy = has_bonus ? zeros(scores.entropy.shape(), kFloat32) : Tensor();
  double loss = 0;
  for (const CompletionPlace& place : completion_places(batch)) {
    const auto number = static_cast<size_t>(place.number);
    CompletionPlace counted = place;
    counted.count = is_masked(place.number) ? 0 : place.count;
    const std::vector<double> log_probs = values_at(scores.log_probs, counted);
    const std::vector<double> entropy = values_at(scores.entropy, counted);
    const auto of = [&](const CompletionValues& values) {
      return values.empty() ? std::span<const double>()
                            : values.of(place.number).first(log_probs.size());
    };
    std::span<const double> old = of(batch_->old_log_probs);
    if (batch_->old_log_probs.empty() && plan_.steps() > 1) {
      std::vector<double>& recorded = recorded_[number];
      if (recorded.empty()) {
        recorded = log_probs;
      }
      old = std::span<const double>(recorded).first(log_probs.size());
    }
    for (size_t t = 0; t < log_probs.size() && shows_mismatch_; ++t) {
      const double difference = std::abs(old[t] - log_probs[t]);
      sums_.mismatch += difference;
      most_mismatch_ = std::max(most_mismatch_, difference);
    }
    const std::vector<uint8_t>& kept = kept_[number];
    const CompletionPolicyLoss own = loss_({.advantage = batch_->advantages[number],
                                            .log_probs = log_probs,
                                            .old = old,
                                            .reference = of(batch_->ref_log_probs),
                                            .kept = kept});
    note_shares(own);
    const double weight = weight_of(counted.count);
    loss += weight * own.loss;
    sums_.policy_loss += weight * own.loss;
    float* gradient = by_log_probs.data<float>() + place.first;
    for (size_t t = 0; t < log_probs.size(); ++t) {
      gradient[t] = static_cast<float>(weight * own.gradient[t]);
      sums_.entropy += entropy[t];
      if (has_bonus && (kept.empty() || kept[t] != 0)) {
        const double each = config_.entropy_coef / std::max(counts_.kept, 1.0);
        loss -= each * entropy[t];
        by_entropy.data<float>()[place.first + static_cast<int64_t>(t)] = static_cast<float>(-each);
      }
    }
  }
  return loss_with_gradients(loss, {scores.log_probs, scores.entropy}, {by_log_probs, by_entropy});
}

NamedValues GrpoObjective::finish_step() {
  one_order_.reset();
  std::array<double, 8> sums = {sums_.policy_loss, sums_.kl,          sums_.entropy,
                                sums_.ratios,      sums_.clipped_low, sums_.clipped_high,
                                sums_.phi,         sums_.mismatch};
  const bool has_own = least_low_ != kNoShare;  // not on other stages than the last
  std::array<double, 3> shares = {has_own ? least_low_ : 0, has_own ? most_high_ : 0,
                                  has_own ? 1.0 : 0.0};
  sum_over_pipeline(sums);
  sum_over_pipeline(shares);
  sum_over_data_parallel(sums);
  const bool has_shares = shares[2] > 0;
  const double low = extreme_over_ranks(has_shares ? shares[0] : kNoShare, ReduceOp::kMin);
  const double high = extreme_over_ranks(has_shares ? shares[1] : -kNoShare, ReduceOp::kMax);
  const auto [policy_loss, kl, entropy, ratios, clipped_low, clipped_high, phi, mismatch] = sums;
  NamedValues values = batch_->metrics;
  if (loss_.beta() > 0) {
    values.emplace_back("kl", ratio_of(kl, counts_.tokens));
  }
  values.emplace_back("entropy", ratio_of(entropy, counts_.tokens));
  const std::string& loss = config_.loss_type->front();
  if (loss_.clips()) {
    values.emplace_back("clip_ratio/low_mean", ratio_of(clipped_low, ratios));
    values.emplace_back("clip_ratio/low_min", low == kNoShare ? 0 : low);
    values.emplace_back("clip_ratio/high_mean", ratio_of(clipped_high, ratios));
    values.emplace_back("clip_ratio/high_max", high == -kNoShare ? 0 : high);
    values.emplace_back("clip_ratio/region_mean", ratio_of(clipped_low + clipped_high, ratios));
  } else if (loss == "cispo") {
    values.emplace_back("cispo_clip_ratio", ratio_of(clipped_high, ratios));
  } else if (loss == "vespo") {
    values.emplace_back("vespo/phi_seq_mean", ratio_of(phi, counts_.completions));
  }
  if (shows_mismatch_) {
    std::array<double, 1> most = {most_mismatch_};  // 0 on all stages but the last
    sum_over_pipeline(most);
    values.emplace_back("sampling/sampling_logp_difference/mean",
                        ratio_of(mismatch, counts_.tokens));
    values.emplace_back("sampling/sampling_logp_difference/max",
                        extreme_over_ranks(most[0], ReduceOp::kMax));
  }
  if (config_.entropy_coef > 0) {
    values.emplace_back("policy_loss", policy_loss);
    values.emplace_back("entropy_coef", config_.entropy_coef);
  }
  return values;
}

}  // namespace tapestry::post_training
