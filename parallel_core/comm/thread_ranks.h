// Ranks as threads of one process: for tests, debuggers and sanitizers.
#pragma once

#include <functional>
#include <memory>

#include "parallel_core/comm/options.h"
#include "parallel_core/comm/process_group.h"

namespace tapestry {

/// Runs `body` on `world_size` threads at once, each with a RankContext of its own as the current
/// one and one OpenMP thread; the argument is the rank's view of the world. Returns when all have
/// ended. If some throw, the others' collectives fail at once, and the exception of the rank that
/// failed first is thrown here; a RuntimeError if the system has not as many threads.
void run_thread_ranks(int world_size,
                      const std::function<void(const std::shared_ptr<ProcessGroup>& world)>& body,
                      const CommunicationOptions& options = {});

}  // namespace tapestry
