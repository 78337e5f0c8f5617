#include "parallel_core/post_training/examples/mismatched_pairs.h"

#include <algorithm>
#include <numeric>
#include <span>

#include "parallel_core/post_training/examples/example_reader.h"

namespace tapestry::post_training {

bool depends_on_epoch(int64_t count, int64_t group) { return count % group != 0; }

SequenceSet mismatched_pairs(const SequenceSet& set,
                             const std::vector<ExchangedUnits>& parts,
                             int64_t group,
                             int64_t max_tokens) {
  const int64_t size = set.size();
  // Whose completion each number has; -1: there is no pair.
  std::vector<int64_t> partners(static_cast<size_t>(size), -1);
  for (const ExchangedUnits& part : parts) {
    const bool depends = depends_on_epoch(part.count, group);
    if (depends && std::ssize(partners) == size) {
      partners.resize(static_cast<size_t>(2 * size), -1);
    }
    const int64_t firsts = std::gcd(part.count, group);  // places that a group may begin at
    for (int64_t place = 0; place < part.count; ++place) {
      const int64_t unit = part.first + part.order(place);
      const auto at = [&](int64_t other) { return part.first + part.order(other % part.count); };
      const int64_t before = at(place + part.count - 1);
      const int64_t last = at(place + group - 1);
      const bool is_first = place % firsts == 0;
      partners[static_cast<size_t>(unit)] = !depends && place % group == 0 ? last : before;
      if (depends && is_first) {
        partners[static_cast<size_t>(size + unit)] = last;
      }
    }
  }
  SequenceSet pairs(1);
  for (size_t number = 0; number < partners.size(); ++number) {
    if (partners[number] < 0) {
      pairs.add({}, {});
      continue;
    }
    const int64_t unit = static_cast<int64_t>(number) % size;
    const auto prompt = set.ids(unit).first(static_cast<size_t>(set.prompt_tokens(unit)));
    const auto completion =
        set.ids(partners[number]).subspan(static_cast<size_t>(set.prompt_tokens(partners[number])));
    const CutSequence cut = cut_sequence(prompt, completion, LongSequences::kKeepStart, max_tokens);
    pairs.add(cut.prompt, cut.completion);
  }
  return pairs;
}

}  // namespace tapestry::post_training
