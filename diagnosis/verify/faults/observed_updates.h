// What find_fault knows of the updates of both sides, and of the rule that they were meant to
// follow.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "diagnosis/verify/faults/fault_search.h"
#include "diagnosis/verify/faults/optimizer_check.h"

namespace tapestry {

/// The rule that updates can be held against.
std::optional<UpdateRule> followed_rule(const AllConfig& config);
/// Schedules in place of the configuration's; where the reference says that it has another one the
/// stage `schedule` has ended.
SchedulesNear schedules_of(const AllConfig& config);

/// Of ours.
std::vector<ObservedUpdate> recorded_updates(const FaultSearch& search);
/// Of the reference's first steps, as far as their gradients and weights are stored in float32.
std::vector<ObservedUpdate> reference_updates(const FaultSearch& search);

/// A weight of ours that changes between two steps, or whose copy for computing did not follow it.
struct StaleWeight {
  int64_t step = 0;
  std::string tensor;
  std::string sentence;
};
std::optional<StaleWeight> stale_weight(const OwnRun& own);
/// Whether weights of ours have changed by then.
bool an_update_has_moved(const OwnRun& own, int64_t step);

}  // namespace tapestry
