#include "diagnosis/report/plot/curves.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "autograd/tensor/error.h"

namespace tapestry::plot {

XAxis parse_x_axis(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, XAxis>, 3> kNames = {
      {{"steps", XAxis::kSteps}, {"tokens", XAxis::kTokens}, {"time", XAxis::kTime}}};
  for (const auto& [name, axis] : kNames) {
    if (name == text) {
      return axis;
    }
  }
  throw ValueError(concat("--x is '", text, "'; expected steps, tokens or time"));
}

Points smoothed(const Points& points, double smooth) {
  Points result = points;
  double sum = 0;
  double weight = 0;
  for (Point& point : result) {
    if (std::isfinite(point.y)) {
      sum = smooth * sum + (1 - smooth) * point.y;
      weight = smooth * weight + (1 - smooth);
      point.y = sum / weight;
    }
  }
  return result;
}

std::vector<Points> without_gaps(const Points& points) {
  std::vector<Points> parts;
  bool inside = false;
  for (const Point& point : points) {
    const bool finite = std::isfinite(point.y);
    if (finite && !inside) {
      parts.emplace_back();
    }
    if (finite) {
      parts.back().push_back(point);
    }
    inside = finite;
  }
  return parts;
}

Points thinned(const Points& points, const Range& x, int columns) {
  if (points.size() <= 4 * static_cast<size_t>(columns)) {
    return points;
  }
  const auto column = [&](const Point& point) {
    return std::clamp(static_cast<int>(x.part(point.x) * columns), 0, columns - 1);
  };
  const auto lower = [](const Point& a, const Point& b) { return a.y < b.y; };
  Points kept;
  for (auto begin = points.begin(); begin != points.end();) {
    const auto end = std::find_if(
        begin, points.end(), [&](const Point& point) { return column(point) != column(*begin); });
    const auto [low, high] = std::minmax_element(begin, end, lower);
    std::array<Points::const_iterator, 4> chosen = {begin, low, high, end - 1};
    std::sort(chosen.begin(), chosen.end());
    for (size_t i = 0; i < chosen.size(); ++i) {
      if (i == 0 || chosen[i] != chosen[i - 1]) {
        kept.push_back(*chosen[i]);
      }
    }
    begin = end;
  }
  return kept;
}

}  // namespace tapestry::plot
