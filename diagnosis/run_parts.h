// What diagnosis adds to a run: autopsies of bad steps, profiles, the dumps of steps.
#pragma once

#include <vector>

#include "parallel_core/training/step/run_part.h"

namespace tapestry::diagnosis {

/// For PretrainOptions::parts: answers training_config.autopsy, training_config.profile, and
/// dump_activation_steps, dump_grad_steps and dump_weight_steps.
std::vector<RunPartFactory> run_parts();

}  // namespace tapestry::diagnosis
