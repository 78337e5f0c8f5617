// Losses and gradient norms of a run, by step, from the files of any framework.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tapestry::accuracy {

struct CurveRun {
  std::string name;
  std::vector<int64_t> steps;  ///< ascending, at least one
  std::vector<double> loss;    ///< at these steps; may be NaN or infinite
  /// The same, NaN where a step has none; empty where no step has one.
  std::vector<double> grad_norm;
  std::vector<std::string> notes;  ///< what was left out, in words
};

/// Reads, by content:
/// - metrics.jsonl, or the output folder of a run. Later lines about a step replace those from
/// there
///   on; where steps start over as a whole, the last run counts, and a note says so.
/// - a table with a header, separated by commas, semicolons or tabs. Columns, in any case: step (or
///   iteration, iter); loss (or lm_loss, train_loss, value); grad_norm (or global_norm), which may
///   be missing. What stands before the last '/' or " - " in a name does not count ("train/loss"),
///   and
///   '-' and ' ' are '_'. A cell may be empty, where the step has no such value, or nan, inf, -inf.
///   Later rows replace earlier ones in the same way.
/// IoError, with file and line, for anything else: unknown path, no header, missing columns, a step
/// that is no whole number, a value that is no number, no step with a loss.
CurveRun read_curve(const std::string& path);

/// All of them, with names: the paths without what all begin with (plot::run_names). ValueError if
/// one is given twice.
std::vector<CurveRun> read_curves(const std::vector<std::string>& paths);

}  // namespace tapestry::accuracy
