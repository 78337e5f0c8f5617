#include "diagnosis/verify/faults/fit_value.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

namespace tapestry {

namespace {

double squares_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double v : values) {
    sum += v * v;
  }
  return sum;
}

}  // namespace

double distance_of_most(const std::vector<double>& residuals) {
  double sum = 0;
  for (const double r : residuals) {
    sum += std::log1p(r * r);
  }
  return sum;
}

std::optional<double> fit_value(const Residuals& residuals, double start, int evaluations) {
  constexpr double kFirstStep = 0.02;
  constexpr double kLargestStep = 1.5;
  constexpr double kSmallestStep = 1e-8;
  // A distance of a tenth of what is allowed needs no better value.
  constexpr double kNearEnough = 0.01;
  double best = std::log(start);
  std::vector<double> at_best = residuals(std::exp(best));
  double least = squares_of(at_best);
  double other = best + kFirstStep;
  std::vector<double> at_other = residuals(std::exp(other));
  for (int calls = 2; calls < evaluations; ++calls) {
    if (!std::isfinite(least) || at_other.size() != at_best.size()) {
      return std::nullopt;
    }
    if (squares_of(at_other) < least) {
      std::swap(best, other);
      std::swap(at_best, at_other);
      least = squares_of(at_best);
    }
    double slope_squares = 0;
    double along = 0;
    for (size_t i = 0; i < at_best.size(); ++i) {
      const double slope = (at_other[i] - at_best[i]) / (other - best);
      slope_squares += slope * slope;
      along += slope * at_best[i];
    }
    if (!(slope_squares > 0) || !std::isfinite(slope_squares)) {
      if (calls == 2) {
        return std::nullopt;
      }
      break;  // nearer by than what is measured can tell
    }
    const double step = std::clamp(-along / slope_squares, -kLargestStep, kLargestStep);
    if (std::abs(step) < kSmallestStep || least < kNearEnough) {
      break;
    }
    const double next = best + step;
    std::vector<double> at_next = residuals(std::exp(next));
    if (squares_of(at_next) < least) {
      other = best;
      at_other = std::move(at_best);
      best = next;
      at_best = std::move(at_next);
      least = squares_of(at_best);
    } else {  // too far: the slope nearer by is another
      other = next;
      at_other = std::move(at_next);
      if (std::abs(step) > kFirstStep) {
        other = best + step / 4;
        at_other = residuals(std::exp(other));
        ++calls;
      }
    }
  }
  return std::isfinite(least) ? std::optional(std::exp(best)) : std::nullopt;
}

std::optional<double> fit_by_sections(const Residuals& residuals, double start) {
  const double ratio = (std::sqrt(5.0) - 1) / 2;
  constexpr int kSections = 32;
  const auto badness = [&](double place) { return distance_of_most(residuals(std::exp(place))); };
  double low = std::log(start / 3);
  double high = std::log(start * 3);
  double a = high - ratio * (high - low);
  double b = low + ratio * (high - low);
  double at_a = badness(a);
  double at_b = badness(b);
  for (int i = 0; i < kSections; ++i) {
    if (at_a < at_b) {
      high = b;
      b = a;
      at_b = at_a;
      a = high - ratio * (high - low);
      at_a = badness(a);
    } else {
      low = a;
      a = b;
      at_a = at_b;
      b = low + ratio * (high - low);
      at_b = badness(b);
    }
  }
  return std::isfinite(at_a + at_b) ? std::optional(std::exp((low + high) / 2)) : std::nullopt;
}

}  // namespace tapestry
