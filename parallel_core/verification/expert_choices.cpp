#include "parallel_core/verification/expert_choices.h"

#include <algorithm>
#include <cmath>

#include "parallel_core/random.h"

namespace tapestry {

namespace {

// Calls f(token, sample, position) for all tokens whose sample is known.
template <class F>
void each_token(const GroupTokens& tokens, F&& f) {
  const std::vector<int64_t>& samples = random_context().sample_ids;
  for (size_t t = 0; t < tokens.numbers.size(); ++t) {
    const auto row = static_cast<size_t>(tokens.numbers[t] / tokens.seq_length);
    if (row < samples.size()) {
      f(t, samples[row], static_cast<size_t>(tokens.numbers[t] % tokens.seq_length));
    }
  }
}

}  // namespace

void RecordedChoices::choose(int64_t layer,
                             const GroupTokens& tokens,
                             std::span<const float> /*values*/,
                             std::vector<int32_t>& experts) {
  if (tokens.numbers.empty()) {
    return;
  }
  const size_t topk = experts.size() / tokens.numbers.size();
  each_token(tokens, [&](size_t t, int64_t sample, size_t position) {
    std::vector<int32_t>& kept = choices_[{random_context().step, layer, sample}];
    kept.resize(static_cast<size_t>(tokens.seq_length) * topk, -1);
    std::copy_n(experts.begin() + static_cast<std::ptrdiff_t>(t * topk), topk,
                kept.begin() + static_cast<std::ptrdiff_t>(position * topk));
  });
}

void ImposedChoices::choose(int64_t layer,
                            const GroupTokens& tokens,
                            std::span<const float> values,
                            std::vector<int32_t>& experts) {
  if (tokens.numbers.empty()) {
    return;
  }
  const size_t topk = experts.size() / tokens.numbers.size();
  const size_t num_experts = values.size() / tokens.numbers.size();
  each_token(tokens, [&](size_t t, int64_t sample, size_t position) {
    const auto found = choices_.find({random_context().step, layer, sample});
    if (found == choices_.end() || found->second.size() < (position + 1) * topk) {
      return;
    }
    const int32_t* theirs = found->second.data() + position * topk;
    int32_t* own = experts.data() + t * topk;
    const float* value = values.data() + t * num_experts;
    bool close = true;
    for (size_t j = 0; j < topk; ++j) {
      const bool known = theirs[j] >= 0 && static_cast<size_t>(theirs[j]) < num_experts;
      close = close && known &&
              (own[j] == theirs[j] || std::abs(value[own[j]] - value[theirs[j]]) < kClosestChoice);
    }
    if (close && !std::equal(own, own + topk, theirs)) {
      std::copy_n(theirs, topk, own);
      ++count_;
    }
  });
}

}  // namespace tapestry
