#include "diagnosis/report/chart_drawing.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "autograd/tensor/error.h"
#include "diagnosis/report/plot/letters.h"
#include "text/util/numbers.h"

namespace tapestry::report {
namespace {

using plot::Point;
using plot::Points;
using plot::Tick;

std::string point_text(const Places& places, const Point& point) {
  return concat(coordinate(places.x(point.x)), ",", coordinate(places.y(point.y)));
}

}  // namespace

double ChartScale::part(double value) const {
  return range.part(logarithmic ? std::log10(value) : value);
}

ChartScale y_scale(const LineChart& chart) {
  constexpr double kMargin = 0.05;
  constexpr double kManyTimes = 50;
  std::vector<double> values;
  for (const ChartCurve& line : chart.lines) {
    for (const Point& point : line.points) {
      if (std::isfinite(point.y)) {
        values.push_back(point.y);
      }
    }
  }
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  if (chart.from_zero && *low >= 0) {
    return {.range = {0, *high > 0 ? *high * (1 + kMargin) : 1}};
  }
  if (*low > 0 && *high > kManyTimes * *low) {
    std::vector<double> logs;
    std::transform(values.begin(), values.end(), std::back_inserter(logs),
                   [](double value) { return std::log10(value); });
    return {.range = plot::range_of(logs, kMargin), .logarithmic = true};
  }
  return {.range = plot::range_of(values, kMargin)};
}

std::vector<Tick> y_ticks(const ChartScale& scale) {
  constexpr int kMost = 6;
  if (!scale.logarithmic) {
    return plot::make_ticks(scale.range, kMost);
  }
  // Powers of ten, every so many of them; within few also 2 and 5 times them.
  const double decades = scale.range.length();
  const auto every = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(decades / kMost)));
  std::vector<Tick> ticks;
  const auto first = static_cast<int64_t>(std::floor(scale.range.low));
  const auto last = static_cast<int64_t>(std::ceil(scale.range.high));
  for (int64_t power = first; power <= last; ++power) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double at = static_cast<double>(power) + std::log10(factor);
      const bool shown = factor == 1 ? power % every == 0 : decades < 2.5;
      if (shown && at >= scale.range.low && at <= scale.range.high) {
        const double value = factor * std::pow(10, static_cast<double>(power));
        ticks.push_back({value, number_text(value, 3)});
      }
    }
  }
  return ticks;
}

bool has_values(const LineChart& chart) {
  return std::any_of(chart.lines.begin(), chart.lines.end(), [](const ChartCurve& line) {
    return std::any_of(line.points.begin(), line.points.end(),
                       [](const Point& point) { return std::isfinite(point.y); });
  });
}

std::string unit_text(const LineChart& chart, const ChartScale& y) {
  return chart.unit + (y.logarithmic ? chart.unit.empty() ? "log scale" : ", log scale" : "");
}

Places::Places(const plot::Range& x, double width, const ChartScale& y, double height)
    : x_(x), y_(y), width_(width), height_(height) {}

std::string coordinate(double value) {
  return std::to_string(static_cast<int64_t>(std::llround(value)));
}

std::string path_of(const Points& points, const Places& places, int columns) {
  std::string path;
  for (const Points& part : plot::without_gaps(points)) {
    const Points few = plot::thinned(part, places.x_range(), columns);
    for (size_t i = 0; i < few.size(); ++i) {
      path += (i == 0 ? "M" : " ") + point_text(places, few[i]);
    }
    path += few.size() == 1 ? "h0" : "";
  }
  return path;
}

std::string dots_of(const Points& points, const Places& places) {
  std::string path;
  for (const Points& part : plot::without_gaps(points)) {
    for (const Point& point : part) {
      path += "M" + point_text(places, point) + "h0";
    }
  }
  return path;
}

std::string grid_of(const std::vector<Tick>& x, const std::vector<Tick>& y, const Places& places) {
  std::string path;
  for (const Tick& tick : x) {
    path += concat("M", coordinate(places.x(tick.value)), ",0V", coordinate(places.height()));
  }
  for (const Tick& tick : y) {
    path += concat("M0,", coordinate(places.y(tick.value)), "H", coordinate(places.width()));
  }
  return path;
}

std::string marks_of(const LineChart& chart, const Places& places, int columns) {
  constexpr double kLow = 0.97;
  std::set<int64_t> seen;
  std::string path;
  for (const double mark : chart.marks) {
    if (mark >= chart.x.low && mark <= chart.x.high &&
        seen.insert(std::llround(chart.x.part(mark) * columns)).second) {
      path += concat("M", coordinate(places.x(mark)), ",", coordinate(kLow * places.height()), "V",
                     coordinate(places.height()));
    }
  }
  return path;
}

std::vector<const ChartCurve*> in_drawing_order(const LineChart& chart) {
  std::vector<const ChartCurve*> curves;
  for (const LineKind kind : {LineKind::kFaint, LineKind::kWhole, LineKind::kDots}) {
    for (const ChartCurve& curve : chart.lines) {
      if (curve.kind == kind) {
        curves.push_back(&curve);
      }
    }
  }
  return curves;
}

std::string curve_attributes(const ChartCurve& curve, const std::string& kind) {
  return concat("class=\"line ", kind, " r", curve.run, "\" data-run=\"", curve.run,
                "\" data-owner=\"", plot::escape_markup(curve.owner), "\" data-name=\"",
                plot::escape_markup(curve.name), "\"");
}

}  // namespace tapestry::report
