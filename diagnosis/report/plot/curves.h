// The curves of a picture: losses of runs over steps, tokens or time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "diagnosis/report/plot/axis.h"
#include "diagnosis/report/plot/run_metrics.h"

namespace tapestry::plot {

/// What a loss is drawn over. Tokens and time are summed over the steps that a run's file has; time
/// is that of the steps, without evaluations and saving.
enum class XAxis { kSteps, kTokens, kTime };

/// "steps", "tokens" or "time". ValueError for any other text.
XAxis parse_x_axis(std::string_view text);

struct Point {
  double x = 0;
  double y = 0;
};

/// Points with ascending x, first to last. A y that is not finite is a gap.
using Points = std::vector<Point>;

struct Curve {
  int64_t run = 0;  ///< the place of the run among all of the picture
  bool validation = false;
  std::string label;  ///< "output, training"
  Points points;
  Points raw = {};  ///< the points before they were smoothed; empty if they were not
};

/// What is drawn, for any kind of picture.
struct Chart {
  std::vector<Curve> curves;
  Range x;
  bool whole_x = false;  ///< ticks of x at whole numbers alone
  std::string x_title;   ///< with its unit
  std::string y_title;
  std::vector<std::string> notes;
};

/// A training curve for each run, and a validation curve for those that have one. `smooth`, in [0,
/// 1), replaces training losses by their mean with weights that fall by this factor from each step
/// to the one before: s_t = smooth s_(t-1) + (1 - smooth) y_t, divided by its value for y = 1 (as
/// in Kingma and Ba 2014, arXiv:1412.6980, section 3); steps without a finite loss are skipped.
/// ValueError: smooth outside its range, more than 26 runs, no finite loss.
Chart make_chart(const std::vector<RunMetrics>& runs, XAxis axis, double smooth);

/// The points with a mean in place of each y, as above.
Points smoothed(const Points& points, double smooth);

/// All y of the curves, with those before smoothing if `raw`.
std::vector<double> losses_of(const Chart& chart, bool raw);

/// The parts of a curve between its gaps.
std::vector<Points> without_gaps(const Points& points);

/// Of many points those that a picture of `columns` columns shows: the first, the last, the lowest
/// and the highest of each column, which give the same lines (Jugel et al. 2014, "M4"). The same
/// points if there are no more than four a column.
Points thinned(const Points& points, const Range& x, int columns);

}  // namespace tapestry::plot
