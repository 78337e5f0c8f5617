// A process group with mistakes in it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "parallel_core/comm/process_group.h"

namespace tapestry::testing {

/// A collective that a rank is about to make.
struct CollectiveCall {
  ProcessGroup& group;  ///< without the mistakes
  Collective what;
  Tensor output;       ///< of an all-reduce, broadcast or message the tensor itself
  Tensor input;        ///< the same, where there is only one
  int64_t step = 0;    ///< from 1; 0 before the first
  int64_t number = 0;  ///< from 0, of those that the fault's `matches` accepts in this step
};

/// What goes wrong in a group: calls that match are made by `act` instead, on every rank alike, or
/// as they should be where `act` says false.
struct CommunicationFault {
  std::string group;  ///< beginning of its name: "tp-"
  Collective what;
  std::function<bool(const CollectiveCall&)> matches;  ///< `number` is not known yet
  std::function<bool(const CollectiveCall&)> act;
};

/// A view of the current rank's world, and of all groups that are made of it, in which the fault
/// happens. Calls are counted in each step, of which start_step tells the rank.
std::shared_ptr<ProcessGroup> with_fault(std::shared_ptr<ProcessGroup> group,
                                         std::shared_ptr<const CommunicationFault> fault);
void start_step(int64_t step);

}  // namespace tapestry::testing
