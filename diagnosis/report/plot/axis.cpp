#include "diagnosis/report/plot/axis.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>

namespace tapestry::plot {
namespace {

struct Unit {
  double size;
  const char* suffix;
};

constexpr double kUnitsFrom = 1e4;
constexpr double kExponentsFrom = 1e15;
constexpr double kExponentsBelow = 1e-6;
constexpr std::array<Unit, 4> kUnits = {Unit{1e12, "T"}, Unit{1e9, "B"}, Unit{1e6, "M"},
                                        Unit{1e3, "k"}};

Unit unit_of(double largest) {
  if (largest >= kUnitsFrom) {
    for (const Unit& unit : kUnits) {
      if (largest >= unit.size) {
        return unit;
      }
    }
  }
  return {1, ""};
}

// Digits behind the point of a multiple of 1, 2 or 5 times a power of ten.
int decimals_of(double step) {
  constexpr double kRounding = 1e-9;
  return std::max(0, static_cast<int>(std::ceil(-std::log10(step) - kRounding)));
}

std::string label_of(double value, double step, double largest) {
  std::array<char, 64> text{};
  if (value == 0) {
    return "0";
  }
  if (largest >= kExponentsFrom || step < kExponentsBelow) {
    std::snprintf(text.data(), text.size(), "%g", value);
    return text.data();
  }
  const Unit unit = unit_of(largest);
  std::snprintf(text.data(), text.size(), "%.*f%s", decimals_of(step / unit.size),
                value / unit.size, unit.suffix);
  return text.data();
}

int64_t first_multiple(const Range& range, double step) {
  // A bound that is a multiple itself counts in spite of rounding.
  constexpr double kRounding = 1e-9;
  return static_cast<int64_t>(std::ceil(range.low / step - kRounding));
}

int64_t last_multiple(const Range& range, double step) {
  constexpr double kRounding = 1e-9;
  return static_cast<int64_t>(std::floor(range.high / step + kRounding));
}

// The step between ticks: the smallest round one of which at most `most` multiples are in the
// range.
double round_step(const Range& range, int most, bool whole) {
  double power = std::pow(10, std::floor(std::log10(range.length() / most)));
  if (whole) {
    power = std::max(power, 1.0);
  }
  for (;; power *= 10) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double step = factor * power;
      if (last_multiple(range, step) - first_multiple(range, step) < most) {
        return step;
      }
    }
  }
}

}  // namespace

Range range_of(const std::vector<double>& values, double margin) {
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  for (const double value : values) {
    if (std::isfinite(value)) {
      low = std::min(low, value);
      high = std::max(high, value);
    }
  }
  if (low > high) {
    return {};
  }
  // Differences that are rounding of the values show as none.
  constexpr double kRounding = 1e-12;
  const double size = std::max(std::abs(low), std::abs(high));
  if (high - low <= kRounding * size) {
    const double around = size == 0 ? 1.0 : size / 10;
    return {low - around, high + around};
  }
  const double free = margin * (high - low);
  return {low - free, high + free};
}

std::vector<Tick> make_ticks(const Range& range, int most, bool whole) {
  const double step = round_step(range, most, whole);
  const double largest = std::max(std::abs(range.low), std::abs(range.high));
  std::vector<Tick> ticks;
  for (int64_t i = first_multiple(range, step); i <= last_multiple(range, step); ++i) {
    const double value = static_cast<double>(i) * step;
    ticks.push_back({value, label_of(value, step, largest)});
  }
  return ticks;
}

}  // namespace tapestry::plot
