// A chart: curves over a common x. In a page it is inline SVG that stretches with the page under
// labels that do not; chart_file.h draws it into a file of its own.
#pragma once

#include <string>
#include <vector>

#include "diagnosis/report/plot/curves.h"

namespace tapestry::report {

enum class LineKind : uint8_t {
  kWhole,
  kFaint,  ///< what was smoothed, behind the others
  kDots,   ///< a dot at each point and a broken line: few points
};

struct ChartCurve {
  size_t run = 0;     ///< whose colour it has
  std::string owner;  ///< the run's name; empty where there is one run alone
  std::string name;   ///< of what it shows: "evaluation"
  LineKind kind = LineKind::kWhole;
  plot::Points points;  ///< ascending x; a y that is not finite is a gap
};

struct LineChart {
  std::string title;
  std::string unit;  ///< of y; may be empty
  std::vector<ChartCurve> lines;
  plot::Range x;
  bool whole_x = true;             ///< x are whole numbers, such as steps
  bool from_zero = false;          ///< y begins at 0
  bool wide = false;               ///< takes the whole width of the page
  std::vector<double> marks = {};  ///< x of steps without an update
};

/// A <figure>; empty if there is no finite value. Lines are thinned to what some hundred columns
/// show. y has a logarithmic scale where all values are above 0 and the largest is 50 times the
/// smallest, unless it begins at 0.
std::string chart_html(const LineChart& chart);

/// A line alone, as large as a word, for a cell of a table.
std::string sparkline_html(const plot::Points& points);

}  // namespace tapestry::report
