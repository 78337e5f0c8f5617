// Somebody who looks at what routers choose.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel_core/transformer/moe/capacity.h"
#include "parallel_core/transformer/moe/expert_choice.h"
#include "parallel_core/transformer/moe/group_tokens.h"

namespace tapestry {

/// What a choice of experts is for: with a selection bias, the balance losses count what the scores
/// alone would choose.
enum class ChoiceUse : uint8_t { kRouting, kBalance };

/// While it lives, is asked by all routers of the current rank that train, in each pass, also in
/// one that is made again (is_recomputing()).
class ChoiceObserver {
 public:
  ChoiceObserver();
  ChoiceObserver(const ChoiceObserver&) = delete;
  ChoiceObserver& operator=(const ChoiceObserver&) = delete;
  virtual ~ChoiceObserver();

  /// `layer` counts from 0. values [T * E] is what experts compete with for each of the T tokens,
  /// experts [T * k] what came of it, first choice first, which may be changed: everything that
  /// follows, gates, counts and losses, goes by it.
  virtual void choose(int64_t layer,
                      ChoiceUse use,
                      const GroupTokens& tokens,
                      std::span<const float> values,
                      const ChoiceRule& rule,
                      std::vector<int32_t>& experts) = 0;

  /// Where experts take a limited number of tokens. own: this rank's assignments; kept [T * k]: 0
  /// for those that are dropped, which may be changed.
  virtual void keep(int64_t layer,
                    const GroupTokens& tokens,
                    const Assignments& own,
                    DropPolicy policy,
                    std::vector<uint8_t>& kept) = 0;

 private:
  ChoiceObserver* previous_;
};

/// The current rank's latest; null: nobody looks.
ChoiceObserver* choice_observer();

}  // namespace tapestry
