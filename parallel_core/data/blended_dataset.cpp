#include "parallel_core/data/blended_dataset.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

#include "autograd/tensor/error.h"

namespace tapestry::data {
namespace {

// NumPy's summation: the order of the additions decides the last bit, and that decides ties.
double numpy_sum(std::span<const double> values) {
  constexpr size_t kLanes = 8;
  constexpr size_t kBlock = 128;
  const size_t n = values.size();
  if (n < kLanes) {
    double sum = 0;
    for (const double value : values) {
      sum += value;
    }
    return sum;
  }
  if (n <= kBlock) {
    std::array<double, kLanes> lane{};
    std::copy_n(values.begin(), kLanes, lane.begin());
    size_t i = kLanes;
    for (; i + kLanes <= n; i += kLanes) {
      for (size_t j = 0; j < kLanes; ++j) {
        lane[j] += values[i + j];
      }
    }
    double sum =
        ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
    for (; i < n; ++i) {
      sum += values[i];
    }
    return sum;
  }
  const size_t half = n / 2 - (n / 2) % kLanes;
  return numpy_sum(values.first(half)) + numpy_sum(values.subspan(half));
}

void check_count(size_t datasets) {
  constexpr auto kMost = static_cast<size_t>(std::numeric_limits<int16_t>::max());
  check<ValueError>(datasets >= 1 && datasets <= kMost, "blend: ", datasets,
                    " datasets, expected 1 .. ", kMost);
}

std::optional<double> parse_number(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || end != text.c_str() + text.size()) {
    return std::nullopt;
  }
  return value;
}

}  // namespace

std::vector<double> normalize_weights(std::span<const double> weights) {
  for (const double weight : weights) {
    check<ValueError>(std::isfinite(weight) && weight >= 0, "blend: weight ", weight,
                      ", expected a finite number of at least 0");
  }
  const double sum = numpy_sum(weights);
  check<ValueError>(sum > 0 && std::isfinite(sum), "blend: the weights add up to ", sum,
                    ", expected a positive number");
  std::vector<double> normalized(weights.begin(), weights.end());
  for (double& weight : normalized) {
    weight /= sum;
  }
  return normalized;
}

BlendIndices build_blend_indices(std::span<const double> weights, int64_t size) {
  check_count(weights.size());
  check<ValueError>(size >= 0, "blend: size ", size, ", expected at least 0");
  const std::vector<double> share = normalize_weights(weights);
  std::vector<int64_t> taken(weights.size(), 0);
  BlendIndices indices;
  indices.dataset.reserve(static_cast<size_t>(size));
  indices.sample.reserve(static_cast<size_t>(size));
  for (int64_t k = 0; k < size; ++k) {
    const auto t = static_cast<double>(std::max<int64_t>(k, 1));
    size_t best = 0;
    double largest = share[0] * t - static_cast<double>(taken[0]);
    for (size_t i = 1; i < share.size(); ++i) {
      const double behind = share[i] * t - static_cast<double>(taken[i]);
      if (behind > largest) {
        largest = behind;
        best = i;
      }
    }
    indices.dataset.push_back(static_cast<int16_t>(best));
    indices.sample.push_back(taken[best]++);
  }
  return indices;
}

BlendIndices build_exhaustive_blend_indices(std::span<const int64_t> sizes) {
  check_count(sizes.size());
  int64_t total = 0;
  for (const int64_t size : sizes) {
    check<ValueError>(size >= 0, "blend: a dataset of size ", size);
    total += size;
  }
  check<ValueError>(total > 0, "blend: no dataset has a sample");
  BlendIndices indices;
  indices.dataset.reserve(static_cast<size_t>(total));
  indices.sample.reserve(static_cast<size_t>(total));
  std::vector<int64_t> taken(sizes.size(), 0);
  for (int64_t k = 0; k < total; ++k) {
    const auto t = static_cast<double>(std::max<int64_t>(k, 1));
    size_t best = sizes.size();
    double largest = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (taken[i] == sizes[i]) {
        continue;
      }
      const double share = static_cast<double>(sizes[i]) / static_cast<double>(total);
      const double behind = share * t - static_cast<double>(taken[i]);
      if (best == sizes.size() || behind > largest) {
        largest = behind;
        best = i;
      }
    }
    indices.dataset.push_back(static_cast<int16_t>(best));
    indices.sample.push_back(taken[best]++);
  }
  return indices;
}

std::vector<int64_t> blend_dataset_sizes(std::span<const double> weights,
                                         int64_t num_samples,
                                         double surplus) {
  check<ValueError>(num_samples >= 0, "blend: number of samples ", num_samples,
                    ", expected at least 0");
  check<ValueError>(std::isfinite(surplus) && surplus >= 0, "blend: surplus ", surplus,
                    ", expected a number of at least 0");
  std::vector<int64_t> sizes;
  for (const double weight : normalize_weights(weights)) {
    const double plain = std::ceil(static_cast<double>(num_samples) * weight);
    sizes.push_back(static_cast<int64_t>(std::ceil(plain * (1.0 + surplus))));
  }
  return sizes;
}

std::vector<BlendEntry> parse_data_path(std::span<const std::string> items) {
  check<ValueError>(!items.empty(),
                    "data_path: is empty, expected a prefix or weights and prefixes");
  size_t numbers = 0;
  if (items.size() % 2 == 0) {
    for (size_t i = 0; i < items.size(); i += 2) {
      numbers += parse_number(items[i]) ? 1 : 0;
    }
    check<ValueError>(numbers == 0 || numbers == items.size() / 2,
                      "data_path: mixes prefixes with and without a weight; give each prefix its "
                      "weight before it, or none");
  }
  std::vector<BlendEntry> entries;
  if (numbers == 0) {
    for (const std::string& item : items) {
      entries.push_back({std::nullopt, item});
    }
  } else {
    for (size_t i = 0; i < items.size(); i += 2) {
      entries.push_back({parse_number(items[i]), items[i + 1]});
    }
  }
  return entries;
}

BlendedDataset::BlendedDataset(std::vector<std::shared_ptr<const TokenDataset>> datasets,
                               BlendIndices indices)
    : datasets_(std::move(datasets)), indices_(std::move(indices)) {
  check_count(datasets_.size());
  std::vector<int64_t> asked(datasets_.size(), 0);
  for (size_t k = 0; k < indices_.dataset.size(); ++k) {
    int64_t& most = asked[static_cast<size_t>(indices_.dataset[k])];
    most = std::max(most, indices_.sample[k] + 1);
  }
  for (size_t i = 0; i < datasets_.size(); ++i) {
    check<ValueError>(datasets_[i]->seq_length() == datasets_[0]->seq_length(),
                      "blend: datasets of sequence lengths ", datasets_[0]->seq_length(), " and ",
                      datasets_[i]->seq_length(), " cannot be mixed");
    check<RuntimeError>(asked[i] <= datasets_[i]->size(), "blend: dataset ", i, " has ",
                        datasets_[i]->size(), " samples, but the blend asks for ", asked[i],
                        "; use a larger surplus");
  }
}

int64_t BlendedDataset::tokens_per_epoch() const {
  int64_t tokens = 0;
  for (const auto& dataset : datasets_) {
    tokens += dataset->tokens_per_epoch();
  }
  return tokens;
}

Sample BlendedDataset::get(int64_t k) const {
  check<IndexError>(k >= 0 && k < size(), "blend: sample ", k, " of ", size());
  const auto at = static_cast<size_t>(k);
  return datasets_[static_cast<size_t>(indices_.dataset[at])]->get(indices_.sample[at]);
}

RowOrigin BlendedDataset::origin(int64_t k) const {
  check<IndexError>(k >= 0 && k < size(), "blend: sample ", k, " of ", size());
  const auto at = static_cast<size_t>(k);
  return datasets_[static_cast<size_t>(indices_.dataset[at])]->origin(indices_.sample[at]);
}

std::map<std::string, int64_t> BlendedDataset::documents() const {
  std::map<std::string, int64_t> all;
  for (const auto& dataset : datasets_) {
    all.merge(dataset->documents());
  }
  return all;
}

std::vector<int64_t> BlendedDataset::samples_with(const std::string& prefix,
                                                  int64_t document) const {
  std::vector<std::vector<int64_t>> of_each;
  of_each.reserve(datasets_.size());
  for (const auto& dataset : datasets_) {
    of_each.push_back(dataset->samples_with(prefix, document));
  }
  std::vector<int64_t> samples;
  for (int64_t k = 0; k < size(); ++k) {
    const auto at = static_cast<size_t>(k);
    const auto& own = of_each[static_cast<size_t>(indices_.dataset[at])];
    if (std::binary_search(own.begin(), own.end(), indices_.sample[at])) {
      samples.push_back(k);
    }
  }
  return samples;
}

}  // namespace tapestry::data
