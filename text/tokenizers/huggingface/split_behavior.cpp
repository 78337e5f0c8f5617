#include "text/tokenizers/huggingface/split_behavior.h"

#include "autograd/tensor/error.h"

namespace tapestry::data::huggingface {

SplitBehavior split_behavior(const Component& component, const std::string& name) {
  if (name == "Removed" || name == "removed") {
    return SplitBehavior::kRemoved;
  }
  if (name == "Isolated" || name == "isolated") {
    return SplitBehavior::kIsolated;
  }
  if (name == "MergedWithPrevious" || name == "merged_with_previous") {
    return SplitBehavior::kMergedWithPrevious;
  }
  if (name == "MergedWithNext" || name == "merged_with_next") {
    return SplitBehavior::kMergedWithNext;
  }
  if (name == "Contiguous" || name == "contiguous") {
    return SplitBehavior::kContiguous;
  }
  component.fail(concat("the behavior ", name, " is not implemented"));
}

void Splitter::part(size_t begin, size_t end, bool match) {
  switch (behavior_) {
    case SplitBehavior::kRemoved:
      if (!match) {
        hold(begin, end);
        give();
      }
      return;
    case SplitBehavior::kIsolated:
      hold(begin, end);
      give();
      return;
    case SplitBehavior::kContiguous:
      if (held_ && match == last_match_) {
        held_end_ = end;
      } else {
        hold(begin, end);
      }
      break;
    case SplitBehavior::kMergedWithPrevious:
      if (held_ && match && !last_match_) {
        held_end_ = end;
      } else {
        hold(begin, end);
      }
      break;
    case SplitBehavior::kMergedWithNext:
      // A match waits for what follows it.
      if (held_ && last_match_ && !match) {
        held_end_ = end;
      } else {
        hold(begin, end);
      }
      break;
  }
  last_match_ = match;
}

}  // namespace tapestry::data::huggingface
