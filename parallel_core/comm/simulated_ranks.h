// Ranks whose messages take the time of a network that is not there: what a collective, a pipeline
// or a step would take on it, with the library's own schedules. Time is a number that each rank
// counts; nothing depends on the machine, so runs repeat to the last digit.
#pragma once

#include <functional>

#include "parallel_core/comm/collective_cost.h"
#include "parallel_core/comm/process_group.h"

namespace tapestry {

/// One rank's clock.
class SimulatedClock {
 public:
  SimulatedClock() = default;
  SimulatedClock(const SimulatedClock&) = delete;
  SimulatedClock& operator=(const SimulatedClock&) = delete;
  virtual ~SimulatedClock() = default;
  /// Seconds since the start.
  virtual double now() const = 0;
  /// The rank computes for as long; its messages wait for it meanwhile.
  virtual void compute(double seconds) = 0;
};

/// Runs `body` on thread ranks (run_thread_ranks) that begin at the same time; the seconds until
/// the last one has left it. A message takes what MessageCost says: its sender's and its receiver's
/// processor for the overhead, both ranks' links for its bytes, and the latency between them.
/// Collectives move on while ranks wait. Additions are made, and take no time. A message to itself
/// is a ValueError.
double simulate_ranks(int ranks,
                      const MessageCost& cost,
                      const std::function<void(ProcessGroup& world, SimulatedClock& clock)>& body);

}  // namespace tapestry
