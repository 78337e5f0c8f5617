#include "diagnosis/report/schedule_plot.h"

#include <algorithm>
#include <vector>

#include "autograd/tensor/error.h"
#include "diagnosis/report/chart_file.h"

namespace tapestry::report {
namespace {

// Of very long runs every so manieth step: far more than a picture has columns.
constexpr int64_t kMostPoints = 1'000'000;

template <class F>
LineChart schedule_chart(const char* name, size_t run, int64_t steps, F&& value_of) {
  LineChart chart{
      .title = name,
      .unit = {},
      .lines = {{.run = run, .owner = {}, .name = name, .points = {}}},
      .x = steps > 1 ? plot::Range{0, static_cast<double>(steps)} : plot::range_of({1}, 0),
      .from_zero = true};
  const int64_t stride = (steps + kMostPoints - 1) / kMostPoints;
  for (int64_t step = 1; step <= steps;
       step = step == steps ? step + 1 : std::min(step + stride, steps)) {
    chart.lines.front().points.push_back({static_cast<double>(step), value_of(step)});
  }
  return chart;
}

}  // namespace

std::string schedule_svg(const optim::Schedule& schedule, int64_t steps) {
  check<ValueError>(steps > 0, "a schedule over ", steps, " steps; expected at least 1");
  // The update of step k comes after k - 1 others.
  const auto before = [](int64_t step) {
    return optim::Schedule::Position{.applied = step - 1, .seen = step - 1};
  };
  std::vector charts = {schedule_chart("learning rate", 0, steps, [&](int64_t step) {
    return schedule.learning_rate(before(step));
  })};
  if (schedule.weight_decay(before(1))) {
    charts.push_back(schedule_chart("weight decay", 1, steps, [&](int64_t step) {
      return schedule.weight_decay(before(step)).value();
    }));
  }
  return charts_svg(charts, "steps");
}

}  // namespace tapestry::report
