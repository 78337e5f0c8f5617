// Runs golden cases of operations against the library.
#pragma once

#include <functional>
#include <iosfwd>
#include <map>
#include <string>
#include <vector>

#include "tests/golden/golden_cases.h"

namespace tapestry::golden {

/// Computes a case: the inputs in the order of the case, and its keyword arguments. A single result
/// has the name "".
using OpFunction = std::function<NamedTensors(const NamedTensors& inputs, const Attributes& attrs)>;

/// Every operation that is known, by its name in the files.
const std::map<std::string, OpFunction>& op_table();

/// What the cases of one operation gave.
struct OpReport {
  std::string op;
  int64_t cases = 0;
  /// Worst distance, as a part of the scale, by dtype and quantity: "float32 grad2".
  std::map<std::string, double> worst;
};

struct Report {
  std::vector<OpReport> ops;
  /// Comparisons that used more than a quarter of their bound: the share, and which one it was.
  std::vector<std::pair<double, std::string>> close_calls;
  std::vector<std::string> skipped;   ///< with the reason
  std::vector<std::string> failures;  ///< "add case_003 grad.a: ..."
  int64_t cases() const;
};

std::ostream& operator<<(std::ostream& out, const Report& report);

/// Runs all cases of a directory. A directory without cases is a failure, and so is an operation
/// that the table does not have, unless its name begins with "chain_": those are skipped.
Report run_golden_ops(const std::string& directory);

}  // namespace tapestry::golden
