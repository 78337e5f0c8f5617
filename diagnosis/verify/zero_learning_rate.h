// A run that does not learn: forward and backward passes alone, over many batches.
#pragma once

#include <cstdint>

#include "diagnosis/report/verdict_report.h"
#include "parallel_core/config/config.h"
#include "parallel_core/training/pretrain.h"

namespace tapestry {

/// `steps` steps with learning rate 0 and no weight decay, as the run would take them otherwise:
/// metrics.jsonl has loss and norm of each, which are those of the start weights on its batch.
/// Nothing is evaluated or saved. The bits of all weights (masters, where there are some) are
/// compared after each step with those at the start. Every rank makes the call and gets the report
/// of all.
///
/// Verdicts: agree, or differ with the first step and tensor whose bits changed. Findings: {tensor,
/// step, rank}. ValueError for less than one step.
accuracy::VerdictReport run_with_zero_learning_rate(const AllConfig& config,
                                                    const PretrainOptions& options,
                                                    int64_t steps);

}  // namespace tapestry
