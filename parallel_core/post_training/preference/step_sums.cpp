#include "parallel_core/post_training/preference/step_sums.h"

#include <algorithm>

#include "parallel_core/comm/sum_over.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/pipeline_parallel/collect.h"

namespace tapestry::post_training {

void sum_over_step(std::span<double> values) {
  if (model_parallel_is_initialized()) {
    sum_over(get_data_parallel_group(), values);
  }
}

GatheredValues gather_over_step(std::span<const double> own) {
  if (!model_parallel_is_initialized()) {
    return {.values = {own.begin(), own.end()}};
  }
  const auto rank = static_cast<size_t>(get_data_parallel_rank());
  std::vector<double> counts(static_cast<size_t>(get_data_parallel_world_size()));
  counts[rank] = static_cast<double>(own.size());
  sum_over_step(counts);
  GatheredValues all;
  int64_t total = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    all.first = i == rank ? total : all.first;
    total += static_cast<int64_t>(counts[i]);
  }
  all.values.assign(static_cast<size_t>(total), 0);
  std::copy(own.begin(), own.end(), all.values.begin() + all.first);
  sum_over_step(all.values);
  return all;
}

void PreferenceSums::finish_step() {
  sum_over_pipeline(sums_);  // the last stage alone has any
  sum_over_step(sums_);
}

double PreferenceSums::accuracy() const {
  return sums_[kLikeliestTokens] > 0 ? sums_[kLikeliest] / sums_[kLikeliestTokens] : 0;
}

void PreferenceSums::append_pairs(NamedValues& values) const {
  values.emplace_back("rewards/chosen", mean_reward(kChosen));
  values.emplace_back("rewards/rejected", mean_reward(kRejected));
  values.emplace_back("rewards/accuracies", right_order());
  values.emplace_back("rewards/margins", mean_reward(kChosen) - mean_reward(kRejected));
  values.emplace_back("logps/chosen", mean_log_prob(kChosen));
  values.emplace_back("logps/rejected", mean_log_prob(kRejected));
}

void PreferenceSums::append_logits(NamedValues& values) const {
  if (at(kChosen, kPositions) > 0) {
    values.emplace_back("logits/chosen", mean_logits(kChosen));
  }
  if (at(kRejected, kPositions) > 0) {
    values.emplace_back("logits/rejected", mean_logits(kRejected));
  }
}

void TrainedTokens::add_step(int64_t step,
                             const std::vector<data::Batch>& micro_batches,
                             bool training) {
  if (!training || step == step_) {
    return;
  }
  double tokens = 0;
  for (const data::Batch& batch : micro_batches) {
    for (const auto& row : batch.sequences) {
      for (const data::RowSequence& sequence : row) {
        tokens += static_cast<double>(sequence.tokens);
      }
    }
  }
  sum_over_step({&tokens, 1});
  before_ += of_step_;
  of_step_ = tokens;
  step_ = step;
}

}  // namespace tapestry::post_training
