#include "diagnosis/dump/tensor_statistics.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "autograd/kernels/statistics.h"
#include "autograd/tensor/error.h"
#include "diagnosis/dump/dense.h"
#include "diagnosis/dump/md5.h"

namespace tapestry::dump {
namespace {

struct StatisticNames {
  std::string_view category;
  std::string_view column;
};
// In the order of the enumeration.
constexpr std::array<StatisticNames, kNumStatistics> kStatisticNames = {{
    {"max", "Max Value"},
    {"min", "Min Value"},
    {"avg", "Avg Value"},
    {"count", "Count"},
    {"negative zero count", "Negative Zero Count"},
    {"positive zero count", "Positive Zero Count"},
    {"nan count", "NaN Count"},
    {"negative inf count", "Negative Inf Count"},
    {"positive inf count", "Positive Inf Count"},
    {"zero count", "Zero Count"},
    {"md5", "MD5"},
    {"l2norm", "L2Norm Value"},
    {"bits", "Bits"},
}};

// Where a statistic is kept, in the order of the enumeration: in one of the two.
constexpr std::array<double TensorStatistics::*, kNumStatistics> kNumbers = {
    &TensorStatistics::max,
    &TensorStatistics::min,
    &TensorStatistics::avg,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
    &TensorStatistics::l2norm,
    nullptr,
};
constexpr std::array<int64_t TensorStatistics::*, kNumStatistics> kCounters = {
    nullptr,
    nullptr,
    nullptr,
    &TensorStatistics::count,
    &TensorStatistics::negative,
    &TensorStatistics::positive,
    &TensorStatistics::nan,
    &TensorStatistics::negative_infinity,
    &TensorStatistics::positive_infinity,
    &TensorStatistics::zero,
    nullptr,
    nullptr,
    &TensorStatistics::bits,
};

std::optional<Statistic> find_statistic(std::string_view StatisticNames::*name,
                                        std::string_view text) {
  for (size_t i = 0; i < kStatisticNames.size(); ++i) {
    if (kStatisticNames[i].*name == text) {
      return static_cast<Statistic>(i);
    }
  }
  return std::nullopt;
}

constexpr auto kExtremes = {Statistic::kMax, Statistic::kMin, Statistic::kAvg, Statistic::kL2Norm};
constexpr auto kCounts = {Statistic::kNegativeZeroCount, Statistic::kPositiveZeroCount,
                          Statistic::kNanCount,          Statistic::kNegativeInfCount,
                          Statistic::kPositiveInfCount,  Statistic::kZeroCount};

}  // namespace

std::string_view category_of(Statistic statistic) {
  return kStatisticNames[static_cast<size_t>(statistic)].category;
}
std::string_view column_of(Statistic statistic) {
  return kStatisticNames[static_cast<size_t>(statistic)].column;
}
std::optional<Statistic> statistic_of_category(std::string_view category) {
  return find_statistic(&StatisticNames::category, category);
}
std::optional<Statistic> statistic_of_column(std::string_view column) {
  return find_statistic(&StatisticNames::column, column);
}

double TensorStatistics::value(Statistic statistic) const {
  check<ValueError>(statistic != Statistic::kMd5, "an MD5 checksum is no number");
  if (const auto number = kNumbers[static_cast<size_t>(statistic)]; number != nullptr) {
    return this->*number;
  }
  return static_cast<double>(this->*kCounters[static_cast<size_t>(statistic)]);
}

bool TensorStatistics::set(Statistic statistic, double value) {
  if (const auto number = kNumbers[static_cast<size_t>(statistic)]; number != nullptr) {
    this->*number = value;
    return true;
  }
  const auto counter = kCounters[static_cast<size_t>(statistic)];
  if (counter == nullptr || !(value >= 0 && value < 0x1p62) || value != std::floor(value)) {
    return false;
  }
  this->*counter = static_cast<int64_t>(value);
  return true;
}

TensorStatistics tensor_statistics(const Tensor& x, StatisticSet chosen) {
  const Tensor elements = dense(x);
  TensorStatistics statistics;
  statistics.count = elements.numel();
  uint32_t groups = 0;
  if (chosen.has_any(kExtremes)) {
    groups |= kernels::kExtremesAndSums;
  }
  if (chosen.has_any(kCounts) || chosen.has(Statistic::kAvg)) {
    groups |= kernels::kElementCounts;
  }
  if (chosen.has(Statistic::kBits)) {
    groups |= kernels::kMantissaBits;
  }
  const auto found =
      kernels::element_statistics(x.dtype(), statistics.count, elements.raw(), groups);
  statistics.negative = found.negative;
  statistics.positive = found.positive;
  statistics.zero = found.zero;
  statistics.nan = found.nan;
  statistics.negative_infinity = found.negative_infinity;
  statistics.positive_infinity = found.positive_infinity;
  statistics.bits = found.bits;
  statistics.l2norm = std::sqrt(found.sum_squares);
  if (found.max >= found.min) {  // there is a finite element
    statistics.max = found.max;
    statistics.min = found.min;
    if (chosen.has(Statistic::kAvg)) {
      statistics.avg = found.sum / static_cast<double>(statistics.finite());
    }
  }
  if (chosen.has(Statistic::kMd5)) {
    statistics.md5 = md5_hex(elements.raw(), static_cast<size_t>(elements.numel()) *
                                                 static_cast<size_t>(size_of(elements.dtype())));
  }
  return statistics;
}

TensorStatistics joined(const std::vector<TensorStatistics>& parts) {
  TensorStatistics all;
  double sum = 0;
  for (const TensorStatistics& part : parts) {
    all.max = std::fmax(all.max, part.max);  // takes the number of a number and a NaN
    all.min = std::fmin(all.min, part.min);
    if (part.finite() > 0) {
      sum += part.avg * static_cast<double>(part.finite());
    }
    all.l2norm = std::hypot(all.l2norm, part.l2norm);
    all.count += part.count;
    all.negative += part.negative;
    all.positive += part.positive;
    all.zero += part.zero;
    all.nan += part.nan;
    all.negative_infinity += part.negative_infinity;
    all.positive_infinity += part.positive_infinity;
    all.bits = std::max(all.bits, part.bits);
  }
  if (all.finite() > 0) {
    all.avg = sum / static_cast<double>(all.finite());
  }
  return all;
}

}  // namespace tapestry::dump
