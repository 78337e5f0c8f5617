// pretrain_gpt --plot: losses of runs, in a file or as a table.
#pragma once

#include <string>
#include <vector>

namespace tapestry::report {

struct PlotOptions {
  std::vector<std::string> runs;  ///< output folders, or their metrics.jsonl
  std::string out;                ///< an SVG file; empty: a table
  std::string x = "steps";        ///< or "tokens" or "time"
  double smooth = 0;              ///< weight of the mean before a step, in [0, 1)
};

/// Writes `out` and returns a line that says so, or returns a table with the first, the last and
/// the lowest loss of each curve; notes on what was left out follow. ValueError for wrong options
/// and runs without a finite loss, IoError for files.
std::string plot_runs(const PlotOptions& options);

}  // namespace tapestry::report
