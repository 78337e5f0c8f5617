// The modes of pretrain_gpt that look for faults and show runs: comparisons, injections, dumps,
// reports, plots.
#pragma once

#include <memory>

#include "examples/gpt/pretrain_command.h"

namespace tapestry::examples {

std::unique_ptr<PretrainModes> diagnosis_modes();

}  // namespace tapestry::examples
