#include "parallel_core/post_training/preference/sorted_ratios.h"

#include <algorithm>
#include <numeric>

#include "parallel_core/post_training/preference/step_sums.h"

namespace tapestry::post_training {

SortedRatios::SortedList SortedRatios::sorted(std::span<const double> own) {
  const GatheredValues all = gather_over_step(own);
  std::vector<int64_t> order(all.values.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return all.values[static_cast<size_t>(a)] < all.values[static_cast<size_t>(b)];
  });
  SortedList list;
  list.places.resize(own.size());
  for (int64_t place = 0; place < std::ssize(order); ++place) {
    const int64_t i = order[static_cast<size_t>(place)];
    list.values.push_back(all.values[static_cast<size_t>(i)]);
    if (i >= all.first && i < all.first + std::ssize(own)) {
      list.places[static_cast<size_t>(i - all.first)] = place;
    }
  }
  return list;
}

SortedRatios::SortedRatios(std::span<const PairLogProbs> own) {
  const auto list_of = [own](auto value) {
    std::vector<double> values(own.size());
    std::transform(own.begin(), own.end(), values.begin(), value);
    return sorted(values);
  };
  policy_ = list_of([](const PairLogProbs& p) { return p.chosen - p.rejected; });
  reference_ =
      list_of([](const PairLogProbs& p) { return p.reference_chosen - p.reference_rejected; });
  chosen_ = list_of([](const PairLogProbs& p) { return p.chosen - p.reference_chosen; });
  rejected_ = list_of([](const PairLogProbs& p) { return p.rejected - p.reference_rejected; });
}

// What stands in `other` where the rank's pair i stands in `mine`.
double SortedRatios::opposite(const SortedList& mine, const SortedList& other, int64_t i) {
  return other.values[static_cast<size_t>(mine.places[static_cast<size_t>(i)])];
}

PairLoss SortedRatios::loss(bool unpaired,
                            const PostTrainingConfig& config,
                            int64_t i,
                            const PairLogProbs& pair) const {
  if (!unpaired) {
    const CompletionLoss loss =
        aot_loss(config, pair.chosen - pair.rejected - opposite(policy_, reference_, i));
    return {loss.value, loss.derivative, -loss.derivative};
  }
  const CompletionLoss of_chosen =
      aot_loss(config, pair.chosen - pair.reference_chosen - opposite(chosen_, rejected_, i));
  const CompletionLoss of_rejected =
      aot_loss(config, opposite(rejected_, chosen_, i) - (pair.rejected - pair.reference_rejected));
  return {of_chosen.value, of_chosen.derivative, -of_rejected.derivative};
}

}  // namespace tapestry::post_training
