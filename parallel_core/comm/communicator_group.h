// The process group of ranks that exchange messages, threads or processes.
#pragma once

#include <memory>
#include <string>

#include "parallel_core/comm/communicator.h"
#include "parallel_core/comm/process_group.h"

namespace tapestry {

/// The group of all ranks. It and the groups made from it keep the communicator.
std::shared_ptr<ProcessGroup> make_world_group(std::shared_ptr<Communicator> communicator);

/// Communicator::tell_waits() of such a group, "" of any other.
std::string tell_waits(ProcessGroup& group);

}  // namespace tapestry
