// The losses of runs, read from their metrics.jsonl.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tapestry::plot {

/// What a line of metrics.jsonl says of a step. Losses may be NaN or infinite.
struct StepLosses {
  int64_t step = 0;
  double loss = 0;                       ///< training, before the update
  double tokens = 0;                     ///< of this step
  double seconds = 0;                    ///< of this step
  std::optional<double> eval_loss = {};  ///< validation, after the update; where there was one
};

/// The steps of a run, in ascending order, at least one.
struct RunMetrics {
  std::string name;
  std::vector<StepLosses> steps;
  std::vector<std::string> notes;  ///< what was left out of the file, in words
};

/// The runs in a metrics.jsonl, given as such or as the folder that it lies in, without names. A
/// step that the file has twice was trained again from a checkpoint: the later lines replace the
/// earlier ones from there on; where the steps start over as a whole, another run begins. A last
/// line without its end, of a run that is writing it, is left out and noted. IoError, with file and
/// line: unknown path, folder without metrics.jsonl, no steps, other content.
std::vector<RunMetrics> read_metrics(const std::string& path);

/// The runs of all paths, with names: the path without what all paths begin with ("a" and "b" of
/// runs/a and runs/b; the last folder of a single path), and "part 2" behind it where a file has
/// several. ValueError if a path is given twice.
std::vector<RunMetrics> read_runs(const std::vector<std::string>& paths);

}  // namespace tapestry::plot
