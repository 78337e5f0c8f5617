// Which charts there are of runs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "diagnosis/report/line_chart.h"
#include "diagnosis/report/plot/curves.h"
#include "diagnosis/report/run_record.h"

namespace tapestry::report {

struct ChartOptions {
  plot::XAxis x = plot::XAxis::kSteps;
  /// Weight of the mean before a step (plot::smoothed); empty: by the number of steps, so that
  /// about a fiftieth of them counts, and none for less than a hundred.
  std::optional<double> smooth = {};
};

struct RunCharts {
  std::vector<LineChart> main;  ///< what every run has: loss, learning rate, norms, ...
  std::vector<LineChart> more;  ///< numbers that metrics.jsonl has besides
  std::string x_title;          ///< "steps", "tokens", "hours of steps", ...
};

/// Losses alone. A smoothed curve has the one behind it that was smoothed.
LineChart loss_chart(const std::vector<RunRecord>& runs, const ChartOptions& options);
/// What x are: "steps", "tokens", "hours of steps", ...
std::string x_title_of(const std::vector<RunRecord>& runs, const ChartOptions& options);

RunCharts make_charts(const std::vector<RunRecord>& runs, const ChartOptions& options);

/// Tokens of a second at each step; NaN where it is not known.
std::vector<double> tokens_per_second(const RunRecord& run);

}  // namespace tapestry::report
