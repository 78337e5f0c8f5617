#include "diagnosis/report/line_chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

#include "autograd/tensor/error.h"
#include "diagnosis/report/chart_drawing.h"
#include "diagnosis/report/plot/letters.h"
#include "text/util/numbers.h"

namespace tapestry::report {
namespace {

using plot::escape_markup;
using plot::Point;
using plot::Points;
using plot::Range;
using plot::Tick;

constexpr int kColumns = 400;
// Whole coordinates keep a page small; a pixel is some hundred of them.
constexpr double kHeight = 100'000;
constexpr double kWidth = 100'000;

std::string percent(double part) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f%%", 100 * part);
  return text.data();
}

std::string line_html(const ChartCurve& line, const std::string& kind, const Places& places) {
  constexpr size_t kMostDots = 80;
  std::string html = concat("<g ", curve_attributes(line, kind), "><path class=\"curve\" d=\"",
                            path_of(line.points, places, kColumns), "\"/>");
  if (line.kind == LineKind::kDots && line.points.size() <= kMostDots) {
    html += concat("<path class=\"points\" d=\"", dots_of(line.points, places), "\"/>");
  }
  return html + "</g>\n";
}

// How lines of each name are drawn, in the order in which names appear: further names of one kind
// are dashed in ways of their own.
std::vector<std::pair<std::string, std::string>> line_classes(const LineChart& chart) {
  constexpr size_t kDashes = 3;
  std::vector<std::pair<std::string, std::string>> classes;  // name, class
  size_t whole = 0;
  for (const ChartCurve& line : chart.lines) {
    if (std::any_of(classes.begin(), classes.end(),
                    [&](const auto& known) { return known.first == line.name; })) {
      continue;
    }
    std::string name = line.kind == LineKind::kFaint  ? "faint"
                       : line.kind == LineKind::kDots ? "dots"
                                                      : "whole";
    if (line.kind == LineKind::kWhole && whole++ > 0) {
      name += concat(" d", (whole - 2) % kDashes);
    }
    classes.emplace_back(line.name, std::move(name));
  }
  return classes;
}

// What the kinds of lines mean, where there is more than one kind and not very many.
std::string key_html(const LineChart& chart) {
  constexpr size_t kMostNames = 6;
  const auto classes = line_classes(chart);
  std::string html;
  for (const auto& [name, kind] : classes) {
    html +=
        concat("<span><span class=\"sample ", kind, "\"></span>", escape_markup(name), "</span> ");
  }
  if (!chart.marks.empty()) {
    html += "<span><span class=\"sample mark\"></span>no update</span> ";
  }
  const size_t entries = classes.size() + (chart.marks.empty() ? 0 : 1);
  return entries > 1 && entries <= kMostNames ? "<span class=\"key\">" + html + "</span>"
                                              : std::string();
}

}  // namespace

std::string chart_html(const LineChart& chart) {
  constexpr int kMostXTicks = 7;
  if (!has_values(chart)) {
    return {};
  }
  const ChartScale y = y_scale(chart);
  // Whole x as they are, which makes reading them back exact.
  const bool exact = chart.whole_x && chart.x.length() < 1e9;
  const Places places(chart.x, exact ? chart.x.length() : kWidth, y, kHeight);
  const std::vector<Tick> x_marks = plot::make_ticks(chart.x, kMostXTicks, chart.whole_x);
  const std::vector<Tick> y_marks = y_ticks(y);
  std::string html =
      concat("<figure class=\"chart", chart.wide ? " wide" : "", "\" data-x0=\"",
             number_text(chart.x.low, 17), "\" data-xunit=\"",
             number_text(chart.x.length() / places.width(), 17), "\" data-y0=\"",
             number_text(y.range.low, 17), "\" data-y1=\"", number_text(y.range.high, 17),
             "\" data-log=\"", y.logarithmic ? 1 : 0, "\" data-whole=\"", chart.whole_x ? 1 : 0,
             "\">\n<figcaption><b>", escape_markup(chart.title), "</b>");
  const std::string unit = unit_text(chart, y);
  if (!unit.empty()) {
    html += " <span class=\"unit\">" + escape_markup(unit) + "</span>";
  }
  size_t letters = 0;
  for (const Tick& tick : y_marks) {
    letters = std::max(letters, tick.label.size());
  }
  html += concat(key_html(chart), "</figcaption>\n<div class=\"plot\" style=\"--w:", letters,
                 "\"><div class=\"ys\">");
  for (const Tick& tick : y_marks) {
    html += concat("<span style=\"top:", percent(places.y(tick.value) / kHeight), "\">", tick.label,
                   "</span>");
  }
  html += concat("</div>\n<div class=\"area\"><svg viewBox=\"0 0 ", coordinate(places.width()), " ",
                 coordinate(kHeight), "\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"",
                 escape_markup(chart.title), "\">\n");
  html += concat("<path class=\"grid\" d=\"", grid_of(x_marks, y_marks, places), "\"/>\n");
  if (const std::string marks = marks_of(chart, places, kColumns); !marks.empty()) {
    html += concat("<path class=\"marks\" d=\"", marks, "\"/>\n");
  }
  const auto classes = line_classes(chart);
  for (const ChartCurve* line : in_drawing_order(chart)) {
    const auto own = std::find_if(classes.begin(), classes.end(),
                                  [&](const auto& known) { return known.first == line->name; });
    html += line_html(*line, own->second, places);
  }
  html += "</svg></div>\n<div class=\"xs\">";
  for (const Tick& tick : x_marks) {
    html += concat("<span style=\"left:", percent(chart.x.part(tick.value)), "\">", tick.label,
                   "</span>");
  }
  return html + "</div></div>\n</figure>\n";
}

std::string sparkline_html(const Points& points) {
  std::vector<double> values;
  for (const Point& point : points) {
    values.push_back(point.y);
  }
  if (points.empty()) {
    return {};
  }
  constexpr double kTall = 100;
  constexpr int kLong = 600;
  const Range x = points.size() > 1 ? Range{points.front().x, points.back().x}
                                    : plot::range_of({points.front().x}, 0);
  const Places places(x, kLong, {.range = plot::range_of(values, 0.1)}, kTall);
  return concat(
      "<svg class=\"spark\" viewBox=\"0 0 600 100\" preserveAspectRatio=\"none\" "
      "aria-hidden=\"true\"><path d=\"",
      path_of(points, places, kLong), "\"/></svg>");
}

}  // namespace tapestry::report
