// The same steps twice in one process: whatever is random without being asked to shows.
#pragma once

#include <cstdint>

#include "diagnosis/report/verdict_report.h"
#include "parallel_core/config/config.h"
#include "parallel_core/training/pretrain.h"

namespace tapestry {

/// Trains the first `steps` steps of a run twice, from the same start, in the folders twice/first
/// and twice/second of its output_dir, without evaluating or saving anything, and compares bits: of
/// the results of every op in the order in which each rank runs them, forward and backward, of
/// loss, norm, gradients and weights after each step. Every rank makes the call and gets the report
/// of all; `first` is what differs first on the lowest such rank and step.
///
/// Verdicts: agree or differ. Findings: {step, what, compared, differ} where `what` is op results,
/// loss, grad_norm, gradients, weights. ValueError for less than one step, and for a run that goes
/// on with a checkpoint.
accuracy::VerdictReport run_twice(const AllConfig& config,
                                  const PretrainOptions& options,
                                  int64_t steps);

}  // namespace tapestry
