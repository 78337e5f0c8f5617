// Curves of pictures as points.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "diagnosis/report/plot/axis.h"

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

/// The points with means in place of their y: weights fall by the factor `smooth`, in [0, 1), from
/// each point to the one before, s_t = smooth s_(t-1) + (1 - smooth) y_t, divided by its value for
/// y = 1 (as in Kingma and Ba 2014, arXiv:1412.6980, section 3). A y that is not finite stays and
/// is skipped.
Points smoothed(const Points& points, double smooth);

/// The parts of a curve between its gaps.
std::vector<Points> without_gaps(const Points& points);

/// Of many points those that a picture of `columns` columns shows: the first, the last, the lowest
/// and the highest of each column, which give the same lines (Jugel et al. 2014, "M4"). The same
/// points if there are no more than four a column.
Points thinned(const Points& points, const Range& x, int columns);

}  // namespace tapestry::plot
