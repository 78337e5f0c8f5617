// accuracy curves: a run's losses and gradient norms against those of references.
#pragma once

#include <string>
#include <vector>

#include "diagnosis/accuracy/curve_file.h"
#include "diagnosis/accuracy/curve_verdict.h"
#include "diagnosis/report/verdict_report.h"

namespace tapestry::accuracy {

struct CurveOptions {
  CurveBounds loss;
  /// Of gradient norms: differences relative to the reference's norm.
  CurveBounds grad_norm = {.bound = 0.05, .jump = 0.25, .close = 0.05, .bias = 0.01};
};

struct CurveComparison {
  VerdictReport report;
  std::string differences;  ///< a table: step, and of each quantity ours, reference, difference,
                            ///< mean of its window, band
};

/// Compares at the steps that all runs have, where all references are finite; norms where all runs
/// have one. The verdict is the gravest of both quantities', the loss's where they are equally
/// accepted or not. Several references span how far apart equal runs are. ValueError for runs
/// without a common step, and for references that are finite in none.
CurveComparison compare_curves(const CurveRun& ours,
                               const std::vector<CurveRun>& references,
                               const CurveOptions& options);

}  // namespace tapestry::accuracy
