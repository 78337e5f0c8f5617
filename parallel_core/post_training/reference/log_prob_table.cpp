#include "parallel_core/post_training/reference/log_prob_table.h"

#include <algorithm>
#include <numeric>

namespace tapestry::post_training {

int64_t scored_tokens(const SequenceSet& set, int64_t sequence) {
  const int64_t completion = set.completion_tokens(sequence);
  return set.prompt_tokens(sequence) > 0 ? completion : std::max<int64_t>(completion - 1, 0);
}

LogProbTable::LogProbTable(const SequenceSet& set) {
  ends_.reserve(static_cast<size_t>(set.size()));
  int64_t end = 0;
  for (int64_t i = 0; i < set.size(); ++i) {
    end += scored_tokens(set, i);
    ends_.push_back(end);
  }
  values_.assign(static_cast<size_t>(end), 0.0F);
}

std::span<float> LogProbTable::tokens(int64_t sequence) {
  const auto i = static_cast<size_t>(sequence);
  const int64_t begin = i > 0 ? ends_[i - 1] : 0;
  return std::span(values_).subspan(static_cast<size_t>(begin),
                                    static_cast<size_t>(ends_[i] - begin));
}

std::span<const float> LogProbTable::tokens(int64_t sequence) const {
  const auto i = static_cast<size_t>(sequence);
  const int64_t begin = i > 0 ? ends_[i - 1] : 0;
  return std::span(values_).subspan(static_cast<size_t>(begin),
                                    static_cast<size_t>(ends_[i] - begin));
}

double LogProbTable::sum(int64_t sequence) const {
  const std::span<const float> of = tokens(sequence);
  return std::accumulate(of.begin(), of.end(), 0.0);
}

double LogProbTable::sum(int64_t sequence, int64_t begin, int64_t end) const {
  const std::span<const float> of =
      tokens(sequence).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  return std::accumulate(of.begin(), of.end(), 0.0);
}

}  // namespace tapestry::post_training
