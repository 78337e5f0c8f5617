// pretrain_gpt --plot_schedule: learning rate and weight decay of a run that has not begun.
#pragma once

#include <cstdint>
#include <string>

#include "optim/lr_scheduler.h"

namespace tapestry::report {

/// An SVG document with both over the updates 1 to `steps`, as the schedule gives them if no step
/// is skipped. ValueError for less than one step.
std::string schedule_svg(const optim::Schedule& schedule, int64_t steps);

}  // namespace tapestry::report
