// What messages between the ranks of a job cost.
#pragma once

#include "parallel_core/comm/collective_cost.h"
#include "parallel_core/comm/process_group.h"

namespace tapestry {

/// Measures for about a second, with 64 MiB: between the first rank and the last, while the others
/// wait. Every rank of the group calls it and gets the same answer; ValueError in a group of one.
/// Medians: of 8 bytes there and back; of a run of small messages; of 16 and of 4 MiB in both
/// directions at once; of the sum of two tensors.
MessageCost measure_messages(ProcessGroup& group);

}  // namespace tapestry
