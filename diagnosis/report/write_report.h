// pretrain_gpt --report: a page about runs, in a file.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace tapestry::report {

struct ReportOptions {
  std::vector<std::string> runs;  ///< output folders, or their metrics.jsonl
  std::string out;                ///< an HTML file; empty: report.html in the first run's folder
  std::string x = "steps";        ///< or "tokens" or "time"
  std::optional<double> smooth = {};  ///< see ChartOptions; in [0, 1)
  std::string version;                ///< of the program, for the foot of the page
};

/// Writes the file and returns a line that says so, and the notes. ValueError for wrong options,
/// IoError for files.
std::string write_report(const ReportOptions& options);

}  // namespace tapestry::report
