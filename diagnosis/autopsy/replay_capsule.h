// Runs the bad step again that a capsule (autopsy/capsule.h) holds.
#pragma once

#include <memory>
#include <string>

#include "parallel_core/comm/process_group.h"

namespace tapestry {

struct ReplayReport {
  bool returns = false;  ///< loss, norm and the place of the first bad value are what they were
  std::string text;      ///< both sides of each, and what is said of the step
};

/// Runs the step of `capsule` with its configuration, weights, data, random numbers, schedule and
/// loss scale; needs nothing but that folder, and changes nothing in it or anywhere else. A job of
/// one process runs the ranks of the capsule as threads, one of as many ranks as it has runs them
/// as they were. The bits of a number are compared; any NaN is like any other.
///
/// ValueError if the ranks had several threads each, and this is one process (it names the command
/// of mpirun), if the job has another number of ranks, and if the capsule was made at another CPU
/// level or with another BLAS, which compute other bits (it names the variable that chooses).
/// IoError for a folder that is no capsule, or lacks a part. Collective.
ReplayReport replay_capsule(const std::string& capsule, const std::shared_ptr<ProcessGroup>& world);

}  // namespace tapestry
