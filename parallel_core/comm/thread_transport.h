// Messages between threads of one process: the receiver copies out of the sender's memory.
#pragma once

#include <memory>
#include <vector>

#include "parallel_core/comm/transport.h"

namespace tapestry {

/// One end for each of `size` threads. The ends share what they need.
std::vector<std::unique_ptr<Transport>> make_thread_transports(int size);

}  // namespace tapestry
