// accuracy compare: two dumps of the same step, tensor by tensor.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "diagnosis/accuracy/tensor_names.h"
#include "diagnosis/report/verdict_report.h"

namespace tapestry::accuracy {

struct CompareOptions {
  NameMap map;          ///< of names in the second dump to names in the first
  double multiple = 8;  ///< of the measured movement that is allowed
  size_t rows = 60;     ///< of the table: those with the largest share of their bounds
};

/// Compares dumps (parallel_core/dump/) of any layout, dtype and program; `expected_folder` is what
/// `ours_folder` is held against. Iterations that both have are compared, of each the tensors that
/// both have under the same name, or under names that mean the same (tensor_names.h; of parameters
/// file_place.h).
///
/// Distances are those of dump/tensor_distance.h relative to the expected tensor: of single
/// elements, or Euclidean where the tensor whose movement was measured is 16-bit. Where a side has
/// statistics alone, the distance is what these prove: with n elements that differ by at most d,
/// max and min differ by at most d and norms by at most sqrt(n) d. NaN or infinity on one side
/// alone is an infinite distance. A bound is `multiple` times the largest movement that
/// rounding.csv (dump/rounding_file.h) of either folder has for the tensor; tensors without one are
/// counted, not judged.
///
/// Verdicts: agree, differ, and not_comparable if there is no rounding.csv (the report says how it
/// is made), no common iteration, or no common tensor with a bound. `first` is the first tensor in
/// the order of the step that is beyond its bound: the op that made it has inputs that agree, as
/// far as they were dumped. Findings: {op, module, pass, io, slot, step, distance, bound, share,
/// status}; status is agrees, differs, or not_compared with a reason in `detail`.
///
/// IoError for dumps that cannot be read.
VerdictReport compare_dumps(const std::string& ours_folder,
                            const std::string& expected_folder,
                            const CompareOptions& options);

}  // namespace tapestry::accuracy
