// Statistics of differences between curves, whose noise is correlated from step to step.
#pragma once

#include <cstddef>
#include <vector>

namespace tapestry::accuracy {

/// Means over `window` values in a row; what is left at the end joins the last window.
struct WindowMeans {
  size_t window = 1;
  size_t values = 0;         ///< in all windows
  std::vector<double> mean;  ///< of each window

  size_t begin(size_t index) const { return index * window; }
  size_t end(size_t index) const { return index + 1 == mean.size() ? values : begin(index + 1); }
};

WindowMeans window_means(const std::vector<double>& values, size_t window);

/// The window for so many values: `wanted`, but at least eight windows where there are eight
/// values.
size_t fitting_window(size_t values, size_t wanted);

inline constexpr size_t kFewestBlocks = 8;

struct Bias {
  double mean = 0;
  double standard_error = 0;  ///< of the mean; NaN for fewer than kFewestBlocks windows
  double sign_balance = 0;    ///< share of the windows whose mean has the sign of most, 0.5 to 1

  /// |mean| / standard_error; infinite where nothing scatters, NaN where nothing is known.
  double significance() const;
};

/// Mean and its standard error from windows [first, last). The error is the largest that blocks of
/// 1, 2, 4, ... windows give, as long as there are kFewestBlocks of them: blocks shorter than the
/// correlation of the noise make it look too small (Flyvbjerg and Petersen 1989, "Error estimates
/// on averages of correlated data").
Bias bias_of(const std::vector<double>& means, size_t first, size_t last);

/// A sudden change of level.
struct Jump {
  size_t at = 0;     ///< index of the first value behind it
  double size = 0;   ///< new level minus old; 0: there is none
  double usual = 0;  ///< how large such a number is elsewhere: 1.4826 times the median of |size|
};

/// The largest jump: at each place lines are fitted to the `reach` values on either side (at least
/// three), and their difference there is the size; less where there are not half of them. It counts
/// as sudden if neither line moves as far within a third of `reach`. A single value that is off
/// moves lines that begin behind it as much as those that end before: the jump is at the first
/// value that is not where the line before it goes on. None for fewer than six values.
Jump largest_jump(const std::vector<double>& values, size_t reach);

/// Where a deviation begins that was not there before: the window k0 for which 0 before it and
/// behind it either a straight rise from 0 or a constant fits the means best, in least squares.
size_t onset_of(const std::vector<double>& means);

/// Where a drift ends up: the last value of the straight rise from 0 over a tenth of the means or
/// more (three at least), 0 before it, that fits best in least squares; 0 for fewer means.
double drift_end(const std::vector<double>& means);

double root_mean_square(const std::vector<double>& values, size_t first, size_t last);

}  // namespace tapestry::accuracy
