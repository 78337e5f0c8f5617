#include "parallel_core/tensorboard/histogram.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace tapestry::report {
namespace {

constexpr size_t kMoments = 3;  // count, sum, sum of squares

std::vector<double> make_limits() {
  constexpr double kSmallest = 1e-12;
  constexpr double kLargest = 1e20;
  constexpr double kGrowth = 1.1;
  std::vector<double> positive;
  for (double limit = kSmallest; limit < kLargest; limit *= kGrowth) {
    positive.push_back(limit);
  }
  positive.push_back(std::numeric_limits<double>::max());
  std::vector<double> limits;
  for (auto limit = positive.rbegin(); limit != positive.rend(); ++limit) {
    limits.push_back(-*limit);
  }
  limits.push_back(0);
  limits.insert(limits.end(), positive.begin(), positive.end());
  return limits;
}

const std::vector<double>& bucket_limits() {
  static const std::vector<double> limits = make_limits();
  return limits;
}

constexpr unsigned kLowBits = 16;

// For the upper half of a float's bits, the bucket of the smallest value that has them. Such a cell
// is narrower than a bucket, so that a value of it is in that bucket or in the next one.
std::vector<uint16_t> make_cells() {
  const std::vector<double>& limits = bucket_limits();
  std::vector<uint16_t> cells(size_t{1} << kLowBits);
  for (uint32_t high = 0; high < cells.size(); ++high) {
    const bool negative = high >> 15U != 0;
    const auto lowest = std::bit_cast<float>(high << kLowBits | (negative ? 0xFFFFU : 0U));
    if (std::isfinite(lowest)) {
      cells[high] = static_cast<uint16_t>(
          std::upper_bound(limits.begin(), limits.end(), static_cast<double>(lowest)) -
          limits.begin());
    }
  }
  return cells;
}

}  // namespace

Histogram::Histogram() : sums_(size()) {}

size_t Histogram::size() { return kMoments + bucket_limits().size(); }

void Histogram::add(std::span<const float> values) {
  static const std::vector<uint16_t> cells = make_cells();
  const std::vector<double>& limits = bucket_limits();
  double* counts = sums_.data() + kMoments;
  for (const float value : values) {
    if (!std::isfinite(value)) {
      continue;
    }
    const double v = value;
    if (!has_values_) {
      has_values_ = true;
      min_ = max_ = v;
    }
    min_ = std::min(min_, v);
    max_ = std::max(max_, v);
    sums_[0] += 1;
    sums_[1] += v;
    sums_[2] += v * v;
    size_t bucket = cells[std::bit_cast<uint32_t>(value) >> kLowBits];
    bucket += v >= limits[bucket] ? 1 : 0;
    counts[bucket] += 1;
  }
}

void Histogram::set_extremes(double min, double max) {
  min_ = min;
  max_ = max;
}

void Histogram::divide(double holders) {
  for (double& sum : sums_) {
    sum /= holders;
  }
}

Histogram::Buckets Histogram::buckets() const {
  const std::vector<double>& limits = bucket_limits();
  const auto filled = [](double count) { return count > 0; };
  const auto counts = sums_.begin() + kMoments;
  auto first = std::find_if(counts, sums_.end(), filled);
  if (first == sums_.end()) {
    return {.limits = {0}, .counts = {0}};
  }
  const auto last = std::find_if(sums_.rbegin(), sums_.rend(), filled).base();
  first -= first == counts ? 0 : 1;
  const auto begin = limits.begin() + (first - counts);
  return {.limits = {begin, begin + (last - first)}, .counts = {first, last}};
}

}  // namespace tapestry::report
