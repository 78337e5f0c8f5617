// The stages of find_fault, in their order. Each adds its rows to the report and says whether the
// search goes on; find_fault.h has what fails them.
#pragma once

#include "diagnosis/verify/faults/fault_search.h"

namespace tapestry {

// fault_in_inputs.cpp: what a training begins with.
bool config_stage(FaultSearch& search);
bool weights_stage(FaultSearch& search);
bool data_stage(FaultSearch& search);
// fault_in_steps.cpp: forward to optimizer.
bool numbers_stages(FaultSearch& search);
// fault_beyond_steps.cpp: ours again, in layouts, and over all of the reference's steps.
bool determinism_stage(FaultSearch& search);
bool expand_stage(FaultSearch& search);
bool long_run_stage(FaultSearch& search);

}  // namespace tapestry
