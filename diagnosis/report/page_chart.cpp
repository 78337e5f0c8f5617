#include "diagnosis/report/page_chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <set>
#include <utility>

#include "autograd/tensor/error.h"
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

struct Scale {
  Range range;  // of log10 where logarithmic
  bool logarithmic = false;

  double place(double value) const { return range.part(logarithmic ? std::log10(value) : value); }
};

Scale y_scale(const PageChart& chart) {
  constexpr double kMargin = 0.05;
  constexpr double kManyTimes = 50;
  std::vector<double> values;
  for (const PageLine& line : chart.lines) {
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

std::vector<Tick> y_ticks(const Scale& scale) {
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

std::string percent(double part) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f%%", 100 * part);
  return text.data();
}

// Where x lies in the drawing: whole numbers as they are, which makes reading them back exact.
class Places {
 public:
  Places(const PageChart& chart, const Scale& y)
      : x_(chart.x), exact_(chart.whole_x && chart.x.length() < 1e9), y_(y) {}

  double width() const { return exact_ ? x_.length() : kWidth; }
  double x(double value) const { return exact_ ? value - x_.low : x_.part(value) * kWidth; }
  double y(double value) const { return (1 - y_.place(value)) * kHeight; }
  double x_unit() const { return x_.length() / width(); }

 private:
  Range x_;
  bool exact_;
  const Scale& y_;
};

std::string coordinate(double value) {
  return std::to_string(static_cast<int64_t>(std::llround(value)));
}

std::string at(const Places& places, const Point& point) {
  return concat(coordinate(places.x(point.x)), ",", coordinate(places.y(point.y)));
}

std::string path_of(const Points& points, const Range& x, const Places& places) {
  std::string path;
  for (const Points& part : plot::without_gaps(points)) {
    const Points few = plot::thinned(part, x, kColumns);
    for (size_t i = 0; i < few.size(); ++i) {
      path += (i == 0 ? "M" : " ") + at(places, few[i]);
    }
    if (few.size() == 1) {
      path += "h0";  // round caps make it a dot
    }
  }
  return path;
}

std::string dots_of(const Points& points, const Places& places) {
  std::string path;
  for (const Points& part : plot::without_gaps(points)) {
    for (const Point& point : part) {
      path += "M" + at(places, point) + "h0";
    }
  }
  return path;
}

std::string line_html(const PageLine& line,
                      const std::string& kind,
                      const PageChart& chart,
                      const Places& places) {
  constexpr size_t kMostDots = 80;
  std::string html = concat("<g class=\"line ", kind, " r", line.run, "\" data-run=\"", line.run,
                            "\" data-owner=\"", escape_markup(line.owner), "\" data-name=\"",
                            escape_markup(line.name), "\"><path class=\"curve\" d=\"",
                            path_of(line.points, chart.x, places), "\"/>");
  if (line.kind == LineKind::kDots && line.points.size() <= kMostDots) {
    html += concat("<path class=\"points\" d=\"", dots_of(line.points, places), "\"/>");
  }
  return html + "</g>\n";
}

// Each mark once for a pixel or so.
std::string marks_html(const PageChart& chart, const Places& places) {
  std::set<int64_t> columns;
  std::string path;
  constexpr double kLow = 0.97 * kHeight;
  for (const double mark : chart.marks) {
    if (mark >= chart.x.low && mark <= chart.x.high &&
        columns.insert(std::llround(chart.x.part(mark) * kColumns)).second) {
      path +=
          concat("M", coordinate(places.x(mark)), ",", coordinate(kLow), "V", coordinate(kHeight));
    }
  }
  return path.empty() ? std::string() : concat("<path class=\"marks\" d=\"", path, "\"/>\n");
}

std::string grid_html(const std::vector<Tick>& x,
                      const std::vector<Tick>& y,
                      const Places& places) {
  std::string path;
  for (const Tick& tick : x) {
    path += concat("M", coordinate(places.x(tick.value)), ",0V", coordinate(kHeight));
  }
  for (const Tick& tick : y) {
    path += concat("M0,", coordinate(places.y(tick.value)), "H", coordinate(places.width()));
  }
  return concat("<path class=\"grid\" d=\"", path, "\"/>\n");
}

// How lines of each name are drawn, in the order in which names appear: further names of one kind
// are dashed in ways of their own.
std::vector<std::pair<std::string, std::string>> line_classes(const PageChart& chart) {
  constexpr size_t kDashes = 3;
  std::vector<std::pair<std::string, std::string>> classes;  // name, class
  size_t whole = 0;
  for (const PageLine& line : chart.lines) {
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
std::string key_html(const PageChart& chart) {
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

bool has_values(const PageChart& chart) {
  return std::any_of(chart.lines.begin(), chart.lines.end(), [](const PageLine& line) {
    return std::any_of(line.points.begin(), line.points.end(),
                       [](const Point& point) { return std::isfinite(point.y); });
  });
}

}  // namespace

std::string chart_html(const PageChart& chart) {
  constexpr int kMostXTicks = 7;
  if (!has_values(chart)) {
    return {};
  }
  const Scale y = y_scale(chart);
  const Places places(chart, y);
  const std::vector<Tick> x_marks = plot::make_ticks(chart.x, kMostXTicks, chart.whole_x);
  const std::vector<Tick> y_marks = y_ticks(y);
  std::string html = concat(
      "<figure class=\"chart", chart.wide ? " wide" : "", "\" data-x0=\"",
      number_text(chart.x.low, 17), "\" data-xunit=\"", number_text(places.x_unit(), 17),
      "\" data-y0=\"", number_text(y.range.low, 17), "\" data-y1=\"", number_text(y.range.high, 17),
      "\" data-log=\"", y.logarithmic ? 1 : 0, "\" data-whole=\"", chart.whole_x ? 1 : 0,
      "\">\n<figcaption><b>", escape_markup(chart.title), "</b>");
  const std::string unit =
      chart.unit + (y.logarithmic ? chart.unit.empty() ? "log scale" : ", log scale" : "");
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
  html += grid_html(x_marks, y_marks, places) + marks_html(chart, places);
  const auto classes = line_classes(chart);
  // Noise lies behind, and what has few points on top.
  for (const LineKind kind : {LineKind::kFaint, LineKind::kWhole, LineKind::kDots}) {
    for (const PageLine& line : chart.lines) {
      if (line.kind == kind) {
        const auto own = std::find_if(classes.begin(), classes.end(),
                                      [&](const auto& known) { return known.first == line.name; });
        html += line_html(line, own->second, chart, places);
      }
    }
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
  constexpr double kLong = 600;
  const Range y = plot::range_of(values, 0.1);
  const Range x = points.size() > 1 ? Range{points.front().x, points.back().x}
                                    : plot::range_of({points.front().x}, 0);
  std::string path;
  for (const Points& part : plot::without_gaps(points)) {
    for (size_t i = 0; i < part.size(); ++i) {
      path += concat(i == 0 ? "M" : " ", coordinate(x.part(part[i].x) * kLong), ",",
                     coordinate((1 - y.part(part[i].y)) * kTall));
    }
    path += part.size() == 1 ? "h0" : "";
  }
  return concat(
      "<svg class=\"spark\" viewBox=\"0 0 600 100\" preserveAspectRatio=\"none\" "
      "aria-hidden=\"true\"><path d=\"",
      path, "\"/></svg>");
}

}  // namespace tapestry::report
