#include "parallel_core/data/segmented_dataset.h"

#include <algorithm>
#include <utility>

#include "autograd/tensor/error.h"

namespace tapestry::data {

SegmentedDataset::SegmentedDataset(std::vector<std::shared_ptr<const TokenDataset>> segments)
    : segments_(std::move(segments)) {
  check<ValueError>(!segments_.empty(), "segments: there is no dataset");
  int64_t end = 0;
  for (const auto& segment : segments_) {
    check<ValueError>(segment->seq_length() == seq_length(), "segments: sequence lengths ",
                      seq_length(), " and ", segment->seq_length(), " differ");
    end += segment->size();
    ends_.push_back(end);
  }
}

Sample SegmentedDataset::get(int64_t k) const {
  check<IndexError>(k >= 0 && k < size(), "segments: sample ", k, " of ", size());
  const auto after = std::upper_bound(ends_.begin(), ends_.end(), k);
  const auto& segment = segments_[static_cast<size_t>(after - ends_.begin())];
  return segment->get(k - (*after - segment->size()));
}

}  // namespace tapestry::data
