// Values of a tensor counted in the buckets that TensorBoard's own writers use.
#pragma once

#include <cstddef>
#include <limits>
#include <span>
#include <vector>

namespace tapestry::report {

/// Buckets end at 0, at +-1e-12 times the powers of 1.1 up to 1e20, and at the largest double. A
/// value lies in the first bucket whose end is above it (tensorflow/core/lib/histogram). What is
/// not finite is left out. Counts need not be whole: see scale().
class Histogram {
 public:
  Histogram();

  void add(std::span<const float> values);

  double min() const { return min_; }  ///< 0 where nothing was added, as max()
  double max() const { return max_; }
  double count() const { return sums_[0]; }
  double sum() const { return sums_[1]; }
  double sum_squares() const { return sums_[2]; }

  /// The buckets from the first to the last that has something in it, and an empty one before them:
  /// where each ends, and how many values it has.
  struct Buckets {
    std::vector<double> limits;
    std::vector<double> counts;
  };
  Buckets buckets() const;

  /// What adds up over parts of a tensor: count, sum, sum of squares, the buckets' counts.
  std::span<double> sums() { return sums_; }
  /// For the extremes of all parts.
  void set_extremes(double min, double max);
  /// Divides the sums by the number of ranks that add the same values.
  void divide(double holders);
  /// How many sums there are.
  static size_t size();

 private:
  bool has_values_ = false;
  double min_ = 0;
  double max_ = 0;
  std::vector<double> sums_;
};

}  // namespace tapestry::report
