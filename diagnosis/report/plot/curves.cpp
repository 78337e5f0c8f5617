#include "diagnosis/report/plot/curves.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "autograd/tensor/error.h"

namespace tapestry::plot {
namespace {

constexpr size_t kMostRuns = 26;

// No loss is as large as this: float32 ends at 3e38. Differences of what is smaller are finite.
constexpr double kNoLoss = 1e300;

double drawable(double loss) {
  return std::abs(loss) < kNoLoss ? loss : std::numeric_limits<double>::quiet_NaN();
}

double amount_of(const StepLosses& step, XAxis axis) {
  return axis == XAxis::kTokens ? step.tokens : step.seconds;
}

// Curves of a run over steps, tokens or seconds; the second is that of validation.
std::pair<Points, Points> curves_of(const RunMetrics& run, XAxis axis) {
  std::pair<Points, Points> curves;
  double sum = 0;
  for (const StepLosses& step : run.steps) {
    sum += amount_of(step, axis);
    const double x = axis == XAxis::kSteps ? static_cast<double>(step.step) : sum;
    curves.first.push_back({x, drawable(step.loss)});
    if (step.eval_loss) {
      curves.second.push_back({x, drawable(*step.eval_loss)});
    }
  }
  return curves;
}

int64_t count_gaps(const Points& points) {
  return std::count_if(points.begin(), points.end(),
                       [](const Point& point) { return !std::isfinite(point.y); });
}

std::string gap_note(const Points& points, const char* kind) {
  const int64_t gaps = count_gaps(points);
  return concat(gaps, " of ", points.size(), " ", kind,
                gaps == 1 ? " losses is not finite: a gap" : " losses are not finite: gaps");
}

struct TimeUnit {
  const char* name;
  double seconds;
};

TimeUnit time_unit(double seconds) {
  constexpr double kMinute = 60;
  constexpr double kHour = 60 * kMinute;
  constexpr double kDay = 24 * kHour;
  return seconds < 2 * kMinute ? TimeUnit{"s", 1}
         : seconds < 2 * kHour ? TimeUnit{"min", kMinute}
         : seconds < 2 * kDay  ? TimeUnit{"h", kHour}
                               : TimeUnit{"days", kDay};
}

double last_x(const Chart& chart) {
  double last = 0;
  for (const Curve& curve : chart.curves) {
    last = std::max(last, curve.points.back().x);
  }
  return last;
}

void set_x_axis(Chart& chart, XAxis axis) {
  chart.x_title = axis == XAxis::kTokens ? "tokens" : "steps";
  chart.whole_x = axis != XAxis::kTime;
  if (axis == XAxis::kTime) {
    const TimeUnit unit = time_unit(last_x(chart));
    chart.x_title = concat("time of the steps (", unit.name, ")");
    for (Curve& curve : chart.curves) {
      for (Points* points : {&curve.points, &curve.raw}) {
        for (Point& point : *points) {
          point.x /= unit.seconds;
        }
      }
    }
  }
  double first = chart.curves.front().points.front().x;
  for (const Curve& curve : chart.curves) {
    first = std::min(first, curve.points.front().x);
  }
  // A run's start is 0, unless the file begins far behind it.
  const double last = last_x(chart);
  chart.x = {first > last / 2 && first > 1 ? first : 0, last};
  if (chart.x.length() <= 0) {
    chart.x = range_of({last}, 0);
  }
}

}  // namespace

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

Chart make_chart(const std::vector<RunMetrics>& runs, XAxis axis, double smooth) {
  check<ValueError>(smooth >= 0 && smooth < 1, "--smooth is ", smooth,
                    "; expected a number from 0 to below 1");
  check<ValueError>(!runs.empty() && runs.size() <= kMostRuns, runs.size(),
                    " runs; a picture shows 1 to ", kMostRuns);
  Chart chart;
  chart.y_title = "loss per token";
  bool drawn = false;
  for (size_t i = 0; i < runs.size(); ++i) {
    const RunMetrics& run = runs[i];
    for (const std::string& note : run.notes) {
      chart.notes.push_back(concat(run.name, ": ", note));
    }
    auto [training, validation] = curves_of(run, axis);
    for (Points* points : {&training, &validation}) {
      const bool is_validation = points == &validation;
      if (points->empty()) {
        continue;
      }
      const char* kind = is_validation ? "validation" : "training";
      const int64_t gaps = count_gaps(*points);
      if (gaps > 0) {
        chart.notes.push_back(concat(run.name, ": ", gap_note(*points, kind)));
      }
      drawn |= gaps < static_cast<int64_t>(points->size());
      Curve curve{.run = static_cast<int64_t>(i),
                  .validation = is_validation,
                  .label = concat(run.name, ", ", kind),
                  .points = std::move(*points)};
      if (smooth > 0 && !is_validation) {
        curve.raw = curve.points;
        curve.points = smoothed(curve.raw, smooth);
        curve.label += " (smoothed)";
      }
      chart.curves.push_back(std::move(curve));
    }
  }
  check<ValueError>(drawn, runs.front().name, runs.size() > 1 ? " and the others have" : " has",
                    " no finite loss: there is nothing to draw");
  set_x_axis(chart, axis);
  return chart;
}

std::vector<double> losses_of(const Chart& chart, bool raw) {
  std::vector<double> all;
  for (const Curve& curve : chart.curves) {
    for (const Point& point : curve.points) {
      all.push_back(point.y);
    }
    if (raw) {
      for (const Point& point : curve.raw) {
        all.push_back(point.y);
      }
    }
  }
  return all;
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
