// accuracy compare --bits: where two runs in exact mode part, by the hashes of their steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "diagnosis/accuracy/step_rerun.h"
#include "diagnosis/report/verdict_report.h"

namespace tapestry::accuracy {

struct CompareBitsOptions {
  /// Runs a step of side 0 or 1 again in one process, with micro-batches of so many sequences.
  std::function<StepRerun(size_t side, int64_t step, int64_t batch_size)> rerun;
  size_t rows = 20;  ///< parameters in the table
};

/// The first step that both runs have and whose hash differs; the parameters whose hashes differ
/// there, in the order of the model; and, with both sides run again, the first thing in that step
/// with other bits: an op (module, pass, micro-batch), gradient or update. If both sides come to
/// the same now, the side whose recorded hash does not return had a fault in that step, or was made
/// by another program. Keys of the configurations that differ and change what is computed are
/// listed first: they explain a difference.
///
/// Verdicts: agree, differ, not_comparable (a run without hashes, hashes of two classes, no common
/// step). Stages: "hash", "config", "start", "forward", "backward", "optimizer", "recorded".
/// Findings {what, name, a, b, status}. IoError for folders that are no runs.
VerdictReport compare_bits(const std::string& a,
                           const std::string& b,
                           const CompareBitsOptions& options);

}  // namespace tapestry::accuracy
