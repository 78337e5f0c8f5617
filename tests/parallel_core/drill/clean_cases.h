// Comparisons in which nothing is wrong: structures, dtypes, layouts and CPU levels.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/parallel_core/drill/drill_reference.h"

namespace tapestry::testing {

/// What a comparison has found.
struct CleanResult {
  bool agrees = true;
  std::string difference;  ///< the sentence about the first one
  /// By what is compared, the largest distance as a share of its bound.
  std::map<std::string, double> shares;
};

struct CleanCase {
  std::string name;
  std::string group;    ///< "stored", "find_fault", "layout"
  bool always = false;  ///< also in the short form
  std::function<CleanResult(DrillReferences&)> compare;
};

/// At least a hundred; more with the stored trainings in `more_stored`, a folder of them (empty:
/// none).
std::vector<CleanCase> clean_cases(const std::string& more_stored);

}  // namespace tapestry::testing
