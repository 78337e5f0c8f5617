// How ranks treat each other.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "parallel_core/comm/rank_hosts.h"
#include "parallel_core/comm/transport.h"

namespace tapestry {

/// What moves a collective on that a rank has started and not yet waited for.
enum class CommProgress : uint8_t {
  kThread,  ///< a thread of the rank, while that computes; it sleeps while none is under way
  kWait,    ///< the rank, while it waits for another one or starts one
  kNone,    ///< each is waited for where it starts: shows what overlap gains. Not messages
};

/// What a group does when ranks do not come, and how its collectives move on.
struct CommunicationOptions {
  /// How long a rank that hears nothing waits for the others of a collective. Ranks that all wait
  /// for each other are found sooner, whatever the value.
  double timeout_seconds = 600;
  /// How long a rank waits for the others inside MPI_Init, MPI_Finalize and what belongs to them.
  double mpi_timeout_seconds = 600;
  CommProgress progress = CommProgress::kThread;
  /// How often ranks look for one of them, or a link, that holds up the others; 0: never.
  double straggler_seconds = 30;
  /// Made around each rank's transport, for tests and measurements (see delayed_transport.h); left
  /// out: nothing.
  std::function<std::unique_ptr<Transport>(std::unique_ptr<Transport>)> wrap_transport;
  /// For what is said about ranks; left out: they are named by their numbers.
  std::shared_ptr<const RankHosts> hosts = std::make_shared<RankHosts>();
};

}  // namespace tapestry
