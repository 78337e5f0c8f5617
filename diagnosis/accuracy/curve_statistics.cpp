#include "diagnosis/accuracy/curve_statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace tapestry::accuracy {
namespace {

double mean_of(const std::vector<double>& values, size_t first, size_t last) {
  return std::accumulate(values.begin() + static_cast<ptrdiff_t>(first),
                         values.begin() + static_cast<ptrdiff_t>(last), 0.0) /
         static_cast<double>(last - first);
}

// Standard error of the mean of blocks that are taken as independent.
double error_of_blocks(const std::vector<double>& blocks) {
  const double mean = mean_of(blocks, 0, blocks.size());
  double squares = 0;
  for (const double block : blocks) {
    squares += (block - mean) * (block - mean);
  }
  const auto count = static_cast<double>(blocks.size());
  return std::sqrt(squares / (count - 1) / count);
}

// A line through values [first, last), least squares.
struct Line {
  double slope = 0;
  double at_first = 0;

  double at(double offset) const { return at_first + slope * offset; }
};

Line fit_line(const std::vector<double>& values, size_t first, size_t last) {
  const auto count = static_cast<double>(last - first);
  const double mean = mean_of(values, first, last);
  const double middle = (count - 1) / 2;
  double products = 0;
  double squares = 0;
  for (size_t i = first; i < last; ++i) {
    const double x = static_cast<double>(i - first) - middle;
    products += x * (values[i] - mean);
    squares += x * x;
  }
  const double slope = squares == 0 ? 0 : products / squares;
  return {.slope = slope, .at_first = mean - slope * middle};
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// How much of the squares a multiple of `shape` explains.
double explained(const std::vector<double>& means,
                 size_t onset,
                 double (*shape)(double windows_since)) {
  double products = 0;
  double squares = 0;
  for (size_t k = onset; k < means.size(); ++k) {
    const double value = shape(static_cast<double>(k - onset) + 1);
    products += value * means[k];
    squares += value * value;
  }
  return products * products / squares;
}

// Whether a value is off the median of those before it, of which some may be off too: by more than
// half of `jump` and by more than they scatter.
bool is_off(const std::vector<double>& values, size_t at, size_t reach, double jump) {
  constexpr double kFar = 5;
  constexpr double kNormalMedian = 1.4826;
  std::vector<double> before(values.begin() + static_cast<ptrdiff_t>(at - std::min(at, reach)),
                             values.begin() + static_cast<ptrdiff_t>(at));
  const double level = median(before);
  for (double& value : before) {
    value = std::abs(value - level);
  }
  const double off = std::abs(values[at] - level);
  return off > std::abs(jump) / 2 && off > kFar * kNormalMedian * median(std::move(before));
}

}  // namespace

WindowMeans window_means(const std::vector<double>& values, size_t window) {
  WindowMeans means{.window = window, .values = values.size(), .mean = {}};
  const size_t count = std::max<size_t>(values.size() / window, values.empty() ? 0 : 1);
  for (size_t k = 0; k < count; ++k) {
    const size_t last = k + 1 == count ? values.size() : (k + 1) * window;
    means.mean.push_back(mean_of(values, k * window, last));
  }
  return means;
}

size_t fitting_window(size_t values, size_t wanted) {
  return std::clamp<size_t>(values / kFewestBlocks, 1, wanted);
}

double Bias::significance() const {
  return standard_error == 0 ? (mean == 0 ? 0 : std::numeric_limits<double>::infinity())
                             : std::abs(mean) / standard_error;
}

Bias bias_of(const std::vector<double>& means, size_t first, size_t last) {
  Bias bias{.mean = mean_of(means, first, last),
            .standard_error = std::numeric_limits<double>::quiet_NaN()};
  const auto above = std::count_if(means.begin() + static_cast<ptrdiff_t>(first),
                                   means.begin() + static_cast<ptrdiff_t>(last),
                                   [](double mean) { return mean > 0; });
  const auto below = std::count_if(means.begin() + static_cast<ptrdiff_t>(first),
                                   means.begin() + static_cast<ptrdiff_t>(last),
                                   [](double mean) { return mean < 0; });
  bias.sign_balance = above + below == 0 ? 0.5
                                         : static_cast<double>(std::max(above, below)) /
                                               static_cast<double>(above + below);
  for (size_t size = 1; (last - first) / size >= kFewestBlocks; size *= 2) {
    std::vector<double> blocks;
    for (size_t k = first; k + size <= last; k += size) {
      blocks.push_back(mean_of(means, k, k + size));
    }
    const double error = error_of_blocks(blocks);
    bias.standard_error =
        std::isnan(bias.standard_error) ? error : std::max(bias.standard_error, error);
  }
  return bias;
}

Jump largest_jump(const std::vector<double>& values, size_t reach) {
  constexpr size_t kFewest = 3;
  constexpr double kNormalMedian = 1.4826;  // standard deviation by median |x| of normal numbers
  Jump jump;
  if (values.size() < 2 * kFewest) {
    return jump;
  }
  std::vector<double> sizes;
  for (size_t at = kFewest; at + kFewest <= values.size(); ++at) {
    const size_t first = at - std::min(at, reach);
    const size_t last = std::min(at + reach, values.size());
    const Line before = fit_line(values, first, at);
    const Line behind = fit_line(values, at, last);
    const double size = behind.at_first - before.at(static_cast<double>(at - first));
    // A line through few values says little of where it ends.
    const auto fewer = static_cast<double>(std::min(at - first, last - at));
    const double trust = std::min(1.0, 2 * fewer / static_cast<double>(reach));
    sizes.push_back(std::abs(size));
    const double moves = std::max(std::abs(before.slope), std::abs(behind.slope));
    const bool sudden = std::abs(size) * trust > moves * static_cast<double>(reach) / 3;
    if (sudden && std::abs(size) * trust > std::abs(jump.size)) {
      jump.at = at;
      jump.size = size * trust;
    }
  }
  jump.usual = kNormalMedian * median(std::move(sizes));
  if (jump.size == 0) {
    return jump;
  }
  const auto is_behind = [&](size_t at) { return is_off(values, at, reach, jump.size); };
  if (!is_behind(jump.at)) {  // lines that end beside a spike are moved by it, too
    for (size_t at = jump.at + 1; at < std::min(jump.at + kFewest, values.size()); ++at) {
      if (is_behind(at)) {
        jump.at = at;
        break;
      }
    }
  }
  while (jump.at > kFewest && is_behind(jump.at - 1)) {
    --jump.at;
  }
  return jump;
}

double drift_end(const std::vector<double>& means) {
  const size_t shortest = std::max<size_t>(3, means.size() / 10);
  const auto rise = [](double windows) { return windows; };
  double best = 0;
  double end = 0;
  for (size_t k = 0; k + shortest <= means.size(); ++k) {
    if (const double found = explained(means, k, rise); found > best) {
      best = found;
      const auto length = static_cast<double>(means.size() - k);
      // The slope is products / squares, and explained is slope^2 squares.
      const double squares = length * (length + 1) * (2 * length + 1) / 6;
      double products = 0;
      for (size_t i = k; i < means.size(); ++i) {
        products += static_cast<double>(i - k + 1) * means[i];
      }
      end = products / squares * length;
    }
  }
  return end;
}

size_t onset_of(const std::vector<double>& means) {
  double best = -1;
  size_t onset = 0;
  for (size_t k = 0; k < means.size(); ++k) {
    const double rise = explained(means, k, [](double windows) { return windows; });
    const double level = explained(means, k, [](double /*windows*/) { return 1.0; });
    if (std::max(rise, level) > best) {
      best = std::max(rise, level);
      onset = k;
    }
  }
  return onset;
}

double root_mean_square(const std::vector<double>& values, size_t first, size_t last) {
  double squares = 0;
  for (size_t i = first; i < last; ++i) {
    squares += values[i] * values[i];
  }
  return std::sqrt(squares / static_cast<double>(last - first));
}

}  // namespace tapestry::accuracy
