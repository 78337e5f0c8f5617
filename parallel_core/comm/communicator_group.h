// The process group of ranks that exchange messages, threads or processes.
#pragma once

#include <memory>

#include "parallel_core/comm/communicator.h"
#include "parallel_core/comm/process_group.h"

namespace tapestry {

/// The group of all ranks. It and the groups made from it keep the communicator.
std::shared_ptr<ProcessGroup> make_world_group(std::shared_ptr<Communicator> communicator);

}  // namespace tapestry
