// The autopsy of bad steps as a piece of a run.
#pragma once

#include "parallel_core/training/step/run_part.h"

namespace tapestry::diagnosis {

/// Answers training_config.autopsy: what programs hand in that have no other diagnosis; the others
/// hand in run_parts().
RunPartFactory autopsy_part();

}  // namespace tapestry::diagnosis
