// pretrain_gpt --plot: losses of runs, in a file or as text.
#pragma once

#include <string>
#include <vector>

#include "diagnosis/report/plot/text_canvas.h"

namespace tapestry::plot {

struct PlotOptions {
  std::vector<std::string> runs;  ///< output folders, or their metrics.jsonl
  std::string out;                ///< an SVG file; empty: text
  std::string x = "steps";        ///< or "tokens" or "time"
  double smooth = 0;              ///< weight of the mean before a step, in [0, 1)
  TextStyle style;
};

/// Writes `out` and returns a line that says so and the notes, or returns the picture as text.
/// ValueError for wrong options and runs without a finite loss, IoError for files.
std::string plot_runs(const PlotOptions& options);

/// True if texts are UTF-8 in the locale: the first of these values, of LC_ALL, LC_CTYPE and LANG,
/// that is not empty names it.
bool is_utf8_locale(const std::vector<std::string>& values);

}  // namespace tapestry::plot
