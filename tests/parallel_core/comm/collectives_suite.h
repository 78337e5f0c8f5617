// What every engine's collectives must do, whatever carries the bytes.
#pragma once

#include "parallel_core/comm/process_group.h"

namespace tapestry::testing {

/// Called by every rank of the world: all collectives over several dtypes and sizes, against sums
/// made in rank order; groups within groups; asynchronous calls in flight together; messages;
/// arguments that do not fit.
void check_collectives(ProcessGroup& world);

/// Sums in exact mode, against a balanced tree where the number of ranks is a power of two.
void check_exact_sums(ProcessGroup& group);

}  // namespace tapestry::testing
