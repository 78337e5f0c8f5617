// Reads back what charts_svg writes: curves in the units of the axes, which are taken from the
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

namespace tapestry::report {

using plot::Points;

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

// From the first and the last tick, in hundredths of a pixel within the area.
inline SvgAxis read_axis(const std::string& svg, const std::string& name) {
  const std::string part = between(svg, "<g class=\"" + name + " ticks\"", "</g>");
  const std::string moved = between(svg, "class=\"area\" transform=\"translate(", ")");
  const bool is_x = name == "x";
  constexpr double kBaseline = 5;  // labels of y stand so much below their line
  const double origin =
      is_x ? std::stod(moved) : std::stod(moved.substr(moved.find(' '))) + kBaseline;
  const std::regex tick("<text x=\"([-0-9.]+)\" y=\"([-0-9.]+)\"[^>]*>([^<]+)</text>");
  std::vector<std::pair<double, double>> ticks;
  for (std::sregex_iterator it(part.begin(), part.end(), tick), end; it != end; ++it) {
    ticks.emplace_back(100 * (std::stod((*it)[is_x ? 1 : 2]) - origin), value_of_label((*it)[3]));
  }
  EXPECT_GE(ticks.size(), 2U) << part;
  if (ticks.size() < 2) {
    return {};
  }
  return {
      ticks.front().first, ticks.front().second,
      (ticks.back().second - ticks.front().second) / (ticks.back().first - ticks.front().first)};
}

/// The lines of a path: "Mx,y x,y ...", or "Mx,yh0" of a lone point.
inline std::vector<Points> read_path(const std::string& path, const SvgAxis& x, const SvgAxis& y) {
  std::vector<Points> lines;
  for (size_t at = path.find('M'); at != std::string::npos; at = path.find('M', at + 1)) {
    std::istringstream words(path.substr(at + 1, path.find('M', at + 1) - at - 1));
    Points points;
    for (std::string word; words >> word;) {
      points.push_back({x(std::stod(word)), y(std::stod(word.substr(word.find(',') + 1)))});
    }
    lines.push_back(points);
  }
  return lines;
}

inline SvgPlot read_svg(const std::string& svg) {
  constexpr double kRounding = 0.5;
  const SvgAxis x = read_axis(svg, "x");
  const SvgAxis y = read_axis(svg, "y");
  // A point, and the two ticks, whose errors grow no further than they lie apart at the ends.
  SvgPlot plot{.x_rounding = 6 * kRounding * std::abs(x.per_pixel),
               .y_rounding = 6 * kRounding * std::abs(y.per_pixel)};
  const std::string opening = "<g class=\"line ";
  for (size_t at = svg.find(opening); at != std::string::npos; at = svg.find(opening, at + 1)) {
    const std::string part = svg.substr(at, svg.find("</g>", at) - at);
    const std::vector<Points> lines =
        read_path(between(part, "<path class=\"curve\" d=\"", "\""), x, y);
    if (part.starts_with(opening + "faint")) {
      plot.raw.insert(plot.raw.end(), lines.begin(), lines.end());
      continue;
    }
    SvgCurve curve{.title = between(part, "<title>", "</title>"),
                   .color = between(part, "stroke=\"", "\"")};
    curve.dashes = between(part.substr(0, part.find('>')), "stroke-dasharray=\"", "\"");
    const std::string mark = between(part, "<path class=\"mark\" d=\"M", "/>");
    curve.shape = mark.substr(std::min(mark.find('m'), mark.size()));
    curve.lines = lines;
    plot.curves.push_back(curve);
  }
  return plot;
}

}  // namespace tapestry::report
