// Verdicts about a number or an update of a step.
#pragma once

#include <string>
#include <vector>

#include "diagnosis/verify/faults/fault_search.h"
#include "diagnosis/verify/faults/observed_updates.h"
#include "diagnosis/verify/faults/step_comparison.h"

namespace tapestry {

/// Each ends the search. A number that differs; `of_stage` are all of the stage, `measured` has the
/// bounds of others.
bool fail_number(FaultSearch& search,
                 const ComparedQuantity& found,
                 const StepComparison& measured,
                 const std::string& stage,
                 const std::vector<const ComparedQuantity*>& of_stage);
/// An update that does not follow the rule; `whose` begins the sentence.
bool fail_optimizer(FaultSearch& search, const OptimizerFault& fault, const std::string& whose);
bool fail_stale(FaultSearch& search, const StaleWeight& stale);

}  // namespace tapestry
