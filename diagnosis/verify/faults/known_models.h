// Settings of a model that others are known to have in place of ours: what a step looks like with
// them.
#pragma once

#include <string>
#include <vector>

#include "diagnosis/verify/faults/fault_search.h"
#include "diagnosis/verify/faults/step_comparison.h"

namespace tapestry {

/// "as if model_config.norm_epsilon were 1e-06": changes of ours with which all that the reference
/// has stored of `step`'s forward and backward pass agrees, and all before it; as texts, the first
/// few. `measured` has the bounds.
std::vector<std::string> models_that_agree(FaultSearch& search,
                                           int64_t step,
                                           const StepComparison& measured);

}  // namespace tapestry
