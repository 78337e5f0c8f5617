// Numbers that describe a tensor's elements, each made in one pass over them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/tensor/tensor.h"

namespace tapestry::dump {

/// What the field `statistic_category` of a dump configuration may list, in the order of the
/// columns of statistic.csv. kBits is Tapestry's own.
enum class Statistic : uint8_t {
  kMax,
  kMin,
  kAvg,
  kCount,
  kNegativeZeroCount,
  kPositiveZeroCount,
  kNanCount,
  kNegativeInfCount,
  kPositiveInfCount,
  kZeroCount,
  kMd5,
  kL2Norm,
  kBits,
};
inline constexpr int kNumStatistics = 13;

/// "max", "negative zero count", "l2norm", ...: as the configuration has it.
std::string_view category_of(Statistic statistic);
/// "Max Value", "Negative Zero Count", "L2Norm Value", ...: as statistic.csv has it.
std::string_view column_of(Statistic statistic);
/// The statistic of a category or of a column; nothing for other words.
std::optional<Statistic> statistic_of_category(std::string_view category);
std::optional<Statistic> statistic_of_column(std::string_view column);

/// Some of the statistics.
class StatisticSet {
 public:
  StatisticSet() = default;
  StatisticSet(std::initializer_list<Statistic> statistics) {
    for (const Statistic statistic : statistics) {
      add(statistic);
    }
  }
  void add(Statistic statistic) { members_ |= 1U << static_cast<unsigned>(statistic); }
  bool has(Statistic statistic) const {
    return (members_ >> static_cast<unsigned>(statistic) & 1U) != 0;
  }
  bool has_any(std::initializer_list<Statistic> statistics) const {
    return (members_ & StatisticSet(statistics).members_) != 0;
  }
  bool empty() const { return members_ == 0; }
  friend bool operator==(const StatisticSet&, const StatisticSet&) = default;

 private:
  uint32_t members_ = 0;
};

/// The statistics of a tensor's n elements. `count` is always there; of others that were not asked
/// for the fields are as here, or as they are where making them costs nothing.
struct TensorStatistics {
  /// Of the finite elements, of which NaN if there are none.
  double max = std::numeric_limits<double>::quiet_NaN();
  double min = std::numeric_limits<double>::quiet_NaN();
  double avg = std::numeric_limits<double>::quiet_NaN();
  /// Root of the sum of squares of the finite elements; 0 if there are none. Of float64 elements
  /// above 1e154 the squares overflow: infinity.
  double l2norm = 0;
  int64_t count = 0;  ///< n
  /// Numbers of elements below 0 and above 0, infinities included. The guide calls them "negative
  /// zero count" and "positive zero count".
  int64_t negative = 0;
  int64_t positive = 0;
  int64_t zero = 0;  ///< of either sign
  int64_t nan = 0;
  int64_t negative_infinity = 0;
  int64_t positive_infinity = 0;
  /// The largest number of significant binary digits that a finite element needs, without trailing
  /// zeros: 0 if all are 0, 1 for powers of two, at most 8 for what has been bfloat16, 11 for
  /// float16, 24 for float32, 53 for float64. Values above the dtype's own cannot occur; far below
  /// it over many elements says that values were rounded to a narrower dtype.
  int64_t bits = 0;
  /// MD5 (RFC 1321) of the elements' bytes, little-endian, in row-major order whatever the strides:
  /// 32 hexadecimal digits; empty if it was not asked for.
  std::string md5;

  int64_t finite() const { return count - nan - negative_infinity - positive_infinity; }
  /// As a number; ValueError for kMd5.
  double value(Statistic statistic) const;
  /// The reverse; of avg, max and min too. False for a count that is not one.
  bool set(Statistic statistic, double value);
};

/// The chosen statistics of x: any dtype, shape and strides; bool counts as 0 and 1. All but MD5
/// are made in one pass on the loop's threads, in fixed blocks of 32768 elements whose sums are
/// carried in float64 and added in order, so the bits do not depend on the number of threads (of
/// avg and l2norm they may on the CPU level). MD5 is another pass, on one thread, as its definition
/// wants. Elements that are not contiguous are copied first.
TensorStatistics tensor_statistics(const Tensor& x, StatisticSet chosen);

/// The statistics of a tensor that is made of parts without overlap: largest of the maxima, sums of
/// counts, ... `md5` stays empty: it does not follow from those of the parts.
TensorStatistics joined(const std::vector<TensorStatistics>& parts);

}  // namespace tapestry::dump
