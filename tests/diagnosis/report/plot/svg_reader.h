// Reads back what svg_chart writes: curves in the units of the axes, which are taken from the
// ticks.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <regex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "diagnosis/report/plot/curves.h"

namespace tapestry::plot {

struct SvgCurve {
  std::string title;
  std::string color;
  std::string dashes;  // "" for a whole line
  std::string shape;   // the path of its marks, without their place, and how it is filled
  std::vector<Points> lines;
};

struct SvgPlot {
  std::vector<SvgCurve> curves;  // as they are drawn
  std::vector<Points> raw;       // what was smoothed
  // What the hundredths of a pixel, of a point and of the ticks, leave open.
  double x_rounding = 0;
  double y_rounding = 0;
};

/// A map from pixels to the values of an axis.
struct SvgAxis {
  double pixel = 0;
  double value = 0;
  double per_pixel = 0;

  double operator()(double at) const { return value + (at - pixel) * per_pixel; }
};

inline double value_of_label(const std::string& label) {
  const std::string units = "kMBT";
  const size_t unit = units.find(label.back());
  return std::stod(label) * (unit == std::string::npos ? 1 : std::pow(1e3, unit + 1));
}

// From the first and the last tick. `name` is x or y.
inline SvgAxis read_axis(const std::string& svg, const std::string& name) {
  const size_t begin = svg.find("<g class=\"" + name + " ticks\"");
  const std::string part = svg.substr(begin, svg.find("</g>", begin) - begin);
  const std::regex tick(name + "1=\"([-0-9.]+)\"[^>]*/><text[^>]*>([^<]+)</text>");
  std::vector<std::pair<double, double>> ticks;
  for (std::sregex_iterator it(part.begin(), part.end(), tick), end; it != end; ++it) {
    ticks.emplace_back(std::stod((*it)[1]), value_of_label((*it)[2]));
  }
  EXPECT_GE(ticks.size(), 2U) << part;
  if (ticks.size() < 2) {
    return {};
  }
  return {
      ticks.front().first, ticks.front().second,
      (ticks.back().second - ticks.front().second) / (ticks.back().first - ticks.front().first)};
}

/// What stands between the first `before` at or behind `from` and the next `after`; "" without
/// them.
inline std::string between(const std::string& text,
                           const std::string& before,
                           const std::string& after,
                           size_t from = 0) {
  const size_t at = text.find(before, from);
  if (at == std::string::npos) {
    return "";
  }
  const size_t begin = at + before.size();
  return text.substr(begin, text.find(after, begin) - begin);
}

inline std::vector<Points> read_lines(const std::string& part, const SvgAxis& x, const SvgAxis& y) {
  std::vector<Points> lines;
  const std::string polyline = "<polyline points=\"";
  for (size_t line = part.find(polyline); line != std::string::npos;
       line = part.find(polyline, line + 1)) {
    std::istringstream words(between(part, polyline, "\"", line));
    Points points;
    for (std::string word; words >> word;) {
      points.push_back({x(std::stod(word)), y(std::stod(word.substr(word.find(',') + 1)))});
    }
    lines.push_back(points);
  }
  return lines;
}

inline SvgPlot read_svg(const std::string& svg) {
  constexpr double kRounding = 0.005;
  const SvgAxis x = read_axis(svg, "x");
  const SvgAxis y = read_axis(svg, "y");
  // A point, and the two ticks, whose errors grow no further than they lie apart at the ends.
  SvgPlot plot{.x_rounding = 6 * kRounding * std::abs(x.per_pixel),
               .y_rounding = 6 * kRounding * std::abs(y.per_pixel)};
  plot.raw = read_lines(between(svg, "<g class=\"raw\"", "</g>"), x, y);
  const std::string opening = "<g class=\"curve\"";
  for (size_t at = svg.find(opening); at != std::string::npos; at = svg.find(opening, at + 1)) {
    const std::string part = svg.substr(at, svg.find("</g>", at) - at);
    SvgCurve curve{.title = between(part, "<title>", "</title>"),
                   .color = between(part, "stroke=\"", "\"")};
    curve.dashes = between(between(part, "<polyline", "/>"), "stroke-dasharray=\"", "\"");
    const std::string mark = between(part, "<path d=\"M", "/>");
    curve.shape = mark.substr(std::min(mark.find('m'), mark.size()));
    curve.lines = read_lines(part, x, y);
    plot.curves.push_back(curve);
  }
  return plot;
}

}  // namespace tapestry::plot
