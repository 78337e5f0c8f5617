// Somebody who looks at what routers choose.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel_core/transformer/moe/group_tokens.h"

namespace tapestry {

/// While it lives, is asked by all routers of the current rank that train, once in each pass.
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
                      const GroupTokens& tokens,
                      std::span<const float> values,
                      std::vector<int32_t>& experts) = 0;

 private:
  ChoiceObserver* previous_;
};

/// The current rank's latest; null: nobody looks.
ChoiceObserver* choice_observer();

}  // namespace tapestry
