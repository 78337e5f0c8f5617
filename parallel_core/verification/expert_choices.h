// What the routers of one process have chosen, for layouts in which rounding decides a tie
// otherwise.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "parallel_core/transformer/moe/choice_observer.h"

namespace tapestry {

/// Experts of every token by step, layer and sample of random_context(): [positions * k].
using ExpertChoices = std::map<std::tuple<int64_t, int64_t, int64_t>, std::vector<int32_t>>;

/// Adds the choices of a process that has whole sequences.
class RecordedChoices final : public ChoiceObserver {
 public:
  explicit RecordedChoices(ExpertChoices& choices) : choices_(choices) {}
  void choose(int64_t layer,
              const GroupTokens& tokens,
              std::span<const float> values,
              std::vector<int32_t>& experts) override;

 private:
  ExpertChoices& choices_;
};

/// Two experts that are closer than this for a token may change places.
inline constexpr float kClosestChoice = 1e-5F;

/// Puts a token's recorded choice in the place of its own where they differ in nothing but experts
/// that are closer than kClosestChoice: a difference that rounding makes, and which would hide all
/// others behind it. A token without a record keeps its choice.
class ImposedChoices final : public ChoiceObserver {
 public:
  explicit ImposedChoices(const ExpertChoices& choices) : choices_(choices) {}
  void choose(int64_t layer,
              const GroupTokens& tokens,
              std::span<const float> values,
              std::vector<int32_t>& experts) override;

  int64_t count() const { return count_; }  ///< tokens whose choice was replaced

 private:
  const ExpertChoices& choices_;
  int64_t count_ = 0;
};

}  // namespace tapestry
