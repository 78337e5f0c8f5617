// What the ranks of a group tell each other while they save and load: texts, and failures.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "parallel_core/comm/process_group.h"

namespace tapestry {

/// The text of every rank, in the order of the ranks, on all of them. Collective.
std::vector<std::string> all_gather_text(ProcessGroup& group, const std::string& own);

/// The text of rank `root` on all ranks. Collective.
std::string broadcast_text(ProcessGroup& group, const std::string& own, int root);

/// Throws on every rank if one of them has failed: on that rank its own exception, on the others
/// one of the same kind (StorageError, IoError, ValueError, else RuntimeError) with the text of the
/// first that has, "rank 3: ...". Collective.
void throw_if_any_failed(ProcessGroup& group, const std::exception_ptr& own);

/// Runs `action` and then throw_if_any_failed.
template <class Action>
void all_or_none(ProcessGroup& group, Action&& action) {
  std::exception_ptr failure;
  try {
    action();
  } catch (...) {
    failure = std::current_exception();
  }
  throw_if_any_failed(group, failure);
}

/// The same for an action that only reads and writes files: a slow disk may hold it up for longer
/// than ranks wait for each other. So it runs on a thread of its own, and meanwhile the ranks ask
/// each other all the time, so that nobody takes one that is at work for one that is gone.
void all_or_none_on_disk(ProcessGroup& group, const std::function<void()>& action);

/// Replaces each value by the exclusive or of the ranks' values. Collective.
void xor_over(ProcessGroup& group, std::vector<uint32_t>& values);

}  // namespace tapestry
