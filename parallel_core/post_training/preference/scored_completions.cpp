#include "parallel_core/post_training/preference/scored_completions.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "autograd/ops/map.h"
#include "autograd/tensor/error.h"

namespace tapestry::post_training {

std::vector<ScoredCompletion> scored_completions(const data::Batch& batch) {
  std::vector<ScoredCompletion> all;
  for (int64_t row = 0; row < std::ssize(batch.sequences); ++row) {
    const auto& sequences = batch.sequences[static_cast<size_t>(row)];
    const int64_t start = row * batch.seq;
    for (size_t i = 0; i < sequences.size(); ++i) {
      const data::RowSequence& sequence = sequences[i];
      const int64_t first = start + sequence.first;
      const int64_t end = first + std::max<int64_t>(sequence.tokens - 1, 0);
      const bool is_last = i + 1 == sequences.size();
      all.push_back({.number = sequence.number,
                     .tokens = sequence.tokens,
                     .begin = std::min(first + std::max<int64_t>(sequence.prompt, 1) - 1, end),
                     .end = end,
                     .first = first,
                     .last = is_last ? start + batch.seq : start + sequences[i + 1].first});
    }
  }
  return all;
}

std::vector<ScoredPair> scored_pairs(const data::Batch& batch) {
  std::vector<ScoredPair> pairs;
  // A batch larger than the data has units more than once, alike in everything.
  std::map<int64_t, std::vector<ScoredCompletion>> rejected;
  const std::vector<ScoredCompletion> all = scored_completions(batch);
  for (const ScoredCompletion& completion : all) {
    if (completion.number % 2 != 0) {
      rejected[completion.number].push_back(completion);
    }
  }
  for (const ScoredCompletion& completion : all) {
    if (completion.number % 2 != 0) {
      continue;
    }
    std::vector<ScoredCompletion>& others = rejected[completion.number + 1];
    check<RuntimeError>(!others.empty(), "the micro-batch has sequence ", completion.number,
                        " without its rejected one");
    pairs.push_back({completion, others.back()});
    others.pop_back();
  }
  check<RuntimeError>(2 * pairs.size() == all.size(), "the micro-batch has ", all.size(),
                      " sequences, of which ", pairs.size(), " are chosen ones");
  return pairs;
}

ScoreValues::ScoreValues(const Tensor& scores) : held_(dense(scores.detach())) {
  check<RuntimeError>(held_.dtype() == kFloat32, "scores of tokens are float32, got ",
                      name_of(held_.dtype()));
}

double sum_of(std::span<const float> values, int64_t begin, int64_t end) {
  return std::accumulate(values.begin() + begin, values.begin() + end, 0.0);
}

}  // namespace tapestry::post_training
