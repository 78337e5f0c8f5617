// Texts inside a row that an objective speaks of one by one: prompts with a completion.
#pragma once

#include <cstdint>

namespace tapestry::data {

/// A prompt with its completion inside a row, of which nothing else in the row sees a token.
struct RowSequence {
  int64_t number = 0;  ///< among all sequences of the run's data; what that means the task knows
  int64_t first = 0;   ///< position of its first token in the row
  int64_t tokens = 0;  ///< of prompt and completion
  int64_t prompt = 0;  ///< tokens before the completion
  bool operator==(const RowSequence&) const = default;
};

}  // namespace tapestry::data
