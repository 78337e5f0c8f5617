// A page about one run or several side by side.
#pragma once

#include <string>
#include <vector>

#include "diagnosis/report/run_charts.h"
#include "diagnosis/report/run_record.h"

namespace tapestry::report {

struct PageOptions {
  ChartOptions charts;
  std::string made;  ///< when and by what, for the foot of the page
};

/// An HTML document that needs nothing from outside: key figures, charts, steps without an update,
/// health of checkpoints, norms by name, memory, configuration and what the runs' differ in, notes.
/// All texts of the runs are escaped. ValueError for no run, and for more than 26.
std::string report_page(const std::vector<RunRecord>& runs, const PageOptions& options);

}  // namespace tapestry::report
