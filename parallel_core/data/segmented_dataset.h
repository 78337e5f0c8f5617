// Datasets one after the other: how a run that needs more samples than it was started with goes on.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "parallel_core/data/token_dataset.h"

namespace tapestry::data {

/// The samples of the first dataset, then those of the second, and so on.
class SegmentedDataset final : public TokenDataset {
 public:
  /// ValueError without a dataset, or if sequence lengths differ.
  explicit SegmentedDataset(std::vector<std::shared_ptr<const TokenDataset>> segments);

  int64_t size() const override { return ends_.back(); }
  int64_t seq_length() const override { return segments_.front()->seq_length(); }
  /// Of the first dataset: the others are of the same text.
  int64_t tokens_per_epoch() const override { return segments_.front()->tokens_per_epoch(); }
  Sample get(int64_t k) const override;
  RowOrigin origin(int64_t k) const override;
  std::map<std::string, int64_t> documents() const override;
  std::vector<int64_t> samples_with(const std::string& prefix, int64_t document) const override;

 private:
  std::vector<std::shared_ptr<const TokenDataset>> segments_;
  std::vector<int64_t> ends_;  // samples of this segment and those before
};

}  // namespace tapestry::data
