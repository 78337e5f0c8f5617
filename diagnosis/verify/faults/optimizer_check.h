// Recomputes what an optimizer did with its gradients, and finds out which rule it followed.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "diagnosis/verify/faults/known_schedules.h"
#include "diagnosis/verify/faults/update_rule.h"

namespace tapestry {

/// The first update that does not follow the rule, and what would explain all of them.
struct OptimizerFault {
  int64_t step = 0;
  std::string tensor;
  double share = 0;  ///< largest |done - due| of its elements, as a multiple of what is allowed
  /// "as if clipping were off"; of some tensors where only their updates deviate: "as if no tensor
  /// decayed, of lm_head.weight alone". Empty: none was found.
  std::string explanation;
  bool is_clipping = false;
  bool is_learning_rate = false;
};

/// Schedules that have such rates from step 1 on (schedules_near).
using SchedulesNear = std::function<std::vector<KnownSchedule>(const std::vector<double>& rates)>;

/// Follows states from zero through consecutive updates, the first of a run on. Allowed is, of an
/// element, what StatesByRule says and what float32 can tell of the weight. If every element was
/// moved as the rule says there is no fault. What explains one is explain_updates'.
std::optional<OptimizerFault> find_optimizer_fault(const UpdateRule& rule,
                                                   const std::vector<ObservedUpdate>& updates,
                                                   const SchedulesNear& schedules = {},
                                                   int64_t micro_batches = 1);

/// The largest deviation of all updates from the rule, as a multiple of what is allowed.
double largest_update_share(const UpdateRule& rule, const std::vector<ObservedUpdate>& updates);

}  // namespace tapestry
