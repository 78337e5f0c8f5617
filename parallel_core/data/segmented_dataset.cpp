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

RowOrigin SegmentedDataset::origin(int64_t k) const {
  check<IndexError>(k >= 0 && k < size(), "segments: sample ", k, " of ", size());
  const auto after = std::upper_bound(ends_.begin(), ends_.end(), k);
  const auto& segment = segments_[static_cast<size_t>(after - ends_.begin())];
  return segment->origin(k - (*after - segment->size()));
}

std::map<std::string, int64_t> SegmentedDataset::documents() const {
  std::map<std::string, int64_t> all;
  for (const auto& segment : segments_) {
    all.merge(segment->documents());
  }
  return all;
}

std::vector<int64_t> SegmentedDataset::samples_with(const std::string& prefix,
                                                    int64_t document) const {
  std::vector<int64_t> samples;
  int64_t first = 0;  // of the segment
  for (const auto& segment : segments_) {
    for (const int64_t k : segment->samples_with(prefix, document)) {
      samples.push_back(first + k);
    }
    first += segment->size();
  }
  return samples;
}

}  // namespace tapestry::data
