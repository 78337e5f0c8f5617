// Several datasets mixed in given proportions, in Megatron's order.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "parallel_core/data/token_dataset.h"

namespace tapestry::data {

/// Which dataset, and which of its samples, sample k of a blend is.
struct BlendIndices {
  std::vector<int16_t> dataset;
  std::vector<int64_t> sample;
};

/// weights / sum(weights) with the sum in the order in which NumPy adds. ValueError unless all are
/// finite and non-negative and one is positive.
std::vector<double> normalize_weights(std::span<const double> weights);

/// `size` samples: each is taken from the dataset that is furthest behind weight * k, the first of
/// equals. The weights are normalised.
BlendIndices build_blend_indices(std::span<const double> weights, int64_t size);

/// The same rule with the sizes as weights over the datasets that have samples left, until all
/// samples are used.
BlendIndices build_exhaustive_blend_indices(std::span<const int64_t> sizes);

/// Samples that dataset i of a weighted blend must have: ceil(ceil(N w_i) (1 + surplus)).
std::vector<int64_t> blend_dataset_sizes(std::span<const double> weights,
                                         int64_t num_samples,
                                         double surplus = 0.005);

/// One entry of a data path.
struct BlendEntry {
  std::optional<double> weight;
  std::string prefix;
};

/// Reads a list of prefixes, or of weights and prefixes in turn: an odd number of items are all
/// prefixes; an even one are pairs if every first of two is a number. ValueError if only some are,
/// or for an empty list.
std::vector<BlendEntry> parse_data_path(std::span<const std::string> items);

/// A mixture of datasets of one sequence length.
class BlendedDataset final : public TokenDataset {
 public:
  /// RuntimeError if a dataset has fewer samples than the order asks of it; ValueError if sequence
  /// lengths differ or there are more than 32767 datasets.
  BlendedDataset(std::vector<std::shared_ptr<const TokenDataset>> datasets, BlendIndices indices);

  int64_t size() const override { return static_cast<int64_t>(indices_.dataset.size()); }
  int64_t seq_length() const override { return datasets_.front()->seq_length(); }
  int64_t tokens_per_epoch() const override;
  Sample get(int64_t k) const override;
  RowOrigin origin(int64_t k) const override;
  std::map<std::string, int64_t> documents() const override;
  std::vector<int64_t> samples_with(const std::string& prefix, int64_t document) const override;

 private:
  std::vector<std::shared_ptr<const TokenDataset>> datasets_;
  BlendIndices indices_;
};

}  // namespace tapestry::data
