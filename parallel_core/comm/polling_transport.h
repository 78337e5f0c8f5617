// Waiting by looking again and again, as ranks that are processes do.
#pragma once

#include <memory>

#include "parallel_core/comm/options.h"
#include "parallel_core/comm/transport.h"

namespace tapestry {

/// How a rank rests between two looks, after so many idle seconds. A rank per core polls; what
/// shares its core gets it at once. After a while it also lets the core rest.
void rest_between_looks(double idle_seconds);

/// A transport whose ranks wait so, whatever `inner` does.
std::unique_ptr<Transport> make_polling_transport(std::unique_ptr<Transport> inner);

/// For ranks that are threads and are to take as long as processes would: where ranks share cores,
/// that is a question of how they wait.
CommunicationOptions waiting_like_processes();

}  // namespace tapestry
