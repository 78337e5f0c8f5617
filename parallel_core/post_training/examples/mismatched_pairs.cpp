#include "parallel_core/post_training/examples/mismatched_pairs.h"

#include <algorithm>
#include <span>

#include "parallel_core/post_training/examples/example_reader.h"

namespace tapestry::post_training {

SequenceSet mismatched_pairs(const SequenceSet& set,
                             const std::vector<ExchangedUnits>& parts,
                             int64_t group,
                             int64_t max_tokens) {
  // Whose completion each number has; -1: there is no pair.
  std::vector<int64_t> partners(static_cast<size_t>(set.size()), -1);
  for (const ExchangedUnits& part : parts) {
    for (int64_t place = 0; place < part.count; ++place) {
      const bool is_first = place % group == 0;
      const int64_t before = is_first ? std::min(place + group, part.count) - 1 : place - 1;
      partners[static_cast<size_t>(part.first + part.order(place))] =
          part.first + part.order(before);
    }
  }
  SequenceSet pairs(1);
  for (size_t number = 0; number < partners.size(); ++number) {
    if (partners[number] < 0) {
      pairs.add({}, {});
      continue;
    }
    const auto unit = static_cast<int64_t>(number);
    const auto prompt = set.ids(unit).first(static_cast<size_t>(set.prompt_tokens(unit)));
    const auto completion =
        set.ids(partners[number]).subspan(static_cast<size_t>(set.prompt_tokens(partners[number])));
    const CutSequence cut = cut_sequence(prompt, completion, LongSequences::kKeepStart, max_tokens);
    pairs.add(cut.prompt, cut.completion);
  }
  return pairs;
}

}  // namespace tapestry::post_training
