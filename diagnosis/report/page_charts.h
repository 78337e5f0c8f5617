// Which charts a page about runs has.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "diagnosis/report/page_chart.h"
#include "diagnosis/report/plot/curves.h"
#include "diagnosis/report/run_record.h"

namespace tapestry::report {

struct ChartOptions {
  plot::XAxis x = plot::XAxis::kSteps;
  /// Weight of the mean before a step (plot::smoothed); empty: by the number of steps, so that
  /// about a fiftieth of them counts, and none for less than a hundred.
  std::optional<double> smooth = {};
};

struct PageCharts {
  std::vector<PageChart> main;  ///< what every run has: loss, learning rate, norms, ...
  std::vector<PageChart> more;  ///< numbers that metrics.jsonl has besides
  std::string x_title;          ///< "steps", "tokens", "hours of steps", ...
};

PageCharts make_charts(const std::vector<RunRecord>& runs, const ChartOptions& options);

/// Tokens of a second at each step; NaN where it is not known.
std::vector<double> tokens_per_second(const RunRecord& run);

}  // namespace tapestry::report
