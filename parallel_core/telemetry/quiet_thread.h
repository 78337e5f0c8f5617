// Threads beside the training, which sleep until somebody wants something of them.
#pragma once

#include <functional>
#include <thread>

namespace tapestry::telemetry {

/// Starts a thread that takes no signals, so that all of them go to the threads that were there,
/// and that has this name (at most 15 letters) in tools of the system.
std::thread start_quiet_thread(const char* name, std::function<void()> body);

}  // namespace tapestry::telemetry
