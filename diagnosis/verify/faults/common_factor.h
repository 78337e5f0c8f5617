// Whether a reference's gradients, or its loss too, are ours times one number, and what makes that.
#pragma once

#include <string>

#include "diagnosis/verify/faults/fault_search.h"
#include "diagnosis/verify/faults/step_comparison.h"

namespace tapestry {

/// "every gradient is 2 times ours, as if gradients were summed over the 2 micro-batches, not
/// averaged"; empty if there is no such number. `found` is a loss, a gradient or a norm that
/// differs.
std::string common_factor_text(const FaultSearch& search, const ComparedQuantity& found);

}  // namespace tapestry
