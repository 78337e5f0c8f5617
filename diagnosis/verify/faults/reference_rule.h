// The rule by which a reference is updated that has stored nothing of its updates: the one by which
// ours has its numbers.
#pragma once

#include "diagnosis/verify/faults/fault_search.h"
#include "diagnosis/verify/faults/optimizer_check.h"
#include "diagnosis/verify/faults/step_comparison.h"

namespace tapestry {

/// Whether the first difference comes after updates of which the reference has stored nothing, so
/// that they may have made it.
bool is_behind_an_update(const FaultSearch& search, const ComparedQuantity& first);

/// All agrees until an update, of which nothing is stored, and no more after it: `found` is the
/// first that does not. Ends the search.
bool fail_update(FaultSearch& search,
                 const ComparedQuantity& found,
                 const UpdateRule& rule,
                 const StepComparison& comparison);

}  // namespace tapestry
