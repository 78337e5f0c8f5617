// Which rule makes the numbers that were measured behind updates.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "diagnosis/verify/faults/known_rules.h"
#include "diagnosis/verify/faults/known_schedules.h"

namespace tapestry {

/// What a rule makes, held against what was measured.
struct Trial {
  /// The largest distance as a share of its bound: up to 1 agrees.
  double share = std::numeric_limits<double>::infinity();
  /// Signed distances as shares of theirs; not all of them need to be there.
  std::vector<double> residuals;
  uint64_t end = 0;  ///< checksum of what the updates leave; 0: not known
};
/// Follows the first `updates` updates by the rule. `whole`: residuals are asked for; else it may
/// end where the rule no longer agrees.
using TryRule = std::function<Trial(const UpdateRule& rule, int64_t updates, bool whole)>;

struct ExplainOptions {
  int64_t updates = 0;        ///< of which something is measured
  std::vector<double> rates;  ///< meant ones, of each update
  /// Schedules with such rates (schedules_near); empty: none is known.
  std::function<std::vector<KnownSchedule>(const std::vector<double>& rates)> schedules;
  int64_t micro_batches = 1;
  std::vector<std::string> tensors;  ///< all logical ones, if parts of the model may be apart
  bool first_only = false;           ///< of known rules one is enough
};

struct Explanation {
  KnownRule known;
  double share = 0;
};

/// Rules with which all agrees, the nearest first: known ones (known_rules); else other learning
/// rates, by the schedule that has them if one is known; else numbers that are fitted
/// (rule_families), given with as few digits as agree; else parts of the model that are left out or
/// have a learning rate of their own. Where the meant rule differs by little all of these are
/// tried. Two that end in the same weights count once.
std::vector<Explanation> explain_updates(const UpdateRule& meant,
                                         const ExplainOptions& options,
                                         const TryRule& try_rule);

/// "as if A, or as if B": the first of them.
std::string explanations_text(const std::vector<Explanation>& explanations);

}  // namespace tapestry
