// What charts of pages and of files have in common: scales, ticks, and curves as paths.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "diagnosis/report/line_chart.h"

namespace tapestry::report {

struct ChartScale {
  plot::Range range;  ///< of log10 where logarithmic
  bool logarithmic = false;

  /// 0 at the low end, 1 at the high one.
  double part(double value) const;
};

/// Logarithmic where all values are above 0 and the largest is 50 times the smallest, unless y
/// begins at 0. There is a finite value.
ChartScale y_scale(const LineChart& chart);
std::vector<plot::Tick> y_ticks(const ChartScale& scale);

/// False if no curve has a finite value.
bool has_values(const LineChart& chart);

/// The unit of y, and that its scale is logarithmic.
std::string unit_text(const LineChart& chart, const ChartScale& y);

/// Where values lie in a drawing, in whole units of it: they keep files small.
class Places {
 public:
  Places(const plot::Range& x, double width, const ChartScale& y, double height);

  double width() const { return width_; }
  double height() const { return height_; }
  double x(double value) const { return x_.part(value) * width_; }
  double y(double value) const { return (1 - y_.part(value)) * height_; }
  const plot::Range& x_range() const { return x_; }

 private:
  plot::Range x_;
  ChartScale y_;
  double width_;
  double height_;
};

std::string coordinate(double value);

/// Lines between the gaps, thinned to what `columns` columns show; a lone point is a line of no
/// length, which round caps make a dot.
std::string path_of(const plot::Points& points, const Places& places, int columns);
/// A dot at each point.
std::string dots_of(const plot::Points& points, const Places& places);
/// A line at each tick, across the drawing.
std::string grid_of(const std::vector<plot::Tick>& x,
                    const std::vector<plot::Tick>& y,
                    const Places& places);
/// Strokes at the bottom at steps without an update, one a column.
std::string marks_of(const LineChart& chart, const Places& places, int columns);

/// The curves as they are drawn: noise lies behind, and what has few points on top.
std::vector<const ChartCurve*> in_drawing_order(const LineChart& chart);

/// `class="line KIND rN"` and the curve's names, as every kind of chart has them.
std::string curve_attributes(const ChartCurve& curve, const std::string& kind);

}  // namespace tapestry::report
