// The state of the calling thread: what the guards of a scope switch.
//
// What threads may do at the same time:
//   - Anything with tensors of their own, in RankContexts of their own or in a shared one: the
//     allocator, the default generator, reference counts, version counters and the numbers of nodes
//     are safe. A block may be freed by another thread than the one that allocated it.
//   - Read the same tensors and parameters, in recorded and unrecorded ops (inference beside
//     training, a model shared by several threads). Who changes a tensor in place (an optimizer, a
//     function with a final underscore) needs it for itself, as with any C++ object.
//   - Hand a tensor with its graph to another thread and run backward there, provided that the
//     threads synchronise (a join, a mutex, a future).
// One handle (one variable of type Tensor) may be copied by several threads, but not assigned to
// while another uses it; hooks, gradients and flags of one tensor are set by one thread at a time.
// autograd/tape/engine.h says what backward passes at the same time may share.
#pragma once

#include <string>

#include "autograd/tensor/memory_kind.h"

namespace tapestry {

/// Belongs to the thread, not to its RankContext: a guard on one thread changes nothing on another,
/// and a RankContextGuard changes nothing here. A new thread starts with the values below, whatever
/// those of the thread that made it are; a helper thread that is to work under its maker's grad
/// mode opens a GradModeGuard of its own.
struct ThreadState {
  bool grad_enabled = true;                          ///< see autograd/tape/grad_mode.h
  bool anomaly_enabled = false;                      ///< see autograd/tape/grad_mode.h
  MemoryKind memory_kind = MemoryKind::kActivation;  ///< of new blocks, see MemoryKindGuard
  void* recording_node = nullptr;     ///< the tape node whose forward is running, if it is recorded
  void* recomputed_values = nullptr;  ///< where ops note how their results are made again, if so;
                                      ///< see autograd/tape/recompute.h
  void* new_storages = nullptr;  ///< a std::vector<Storage*>, if those that are made are listed
  void* leases = nullptr;        ///< the LeaseScope of the op that is running
  bool recomputing = false;      ///< what runs has run before
  void* observers = nullptr;     ///< those that are told what runs, see autograd/tape/observer.h
  void* op_observers = nullptr;  ///< the same, but null inside an op: whoever is told of ops
  const std::string* module = nullptr;  ///< path of the module whose forward runs; lives for ever
};

namespace detail {
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): one for each thread
inline thread_local constinit ThreadState current_thread_state;
}  // namespace detail

inline ThreadState& thread_state() { return detail::current_thread_state; }

/// Counts blocks that the calling thread allocates during its lifetime under the given kind.
class MemoryKindGuard {
 public:
  explicit MemoryKindGuard(MemoryKind kind) : previous_(thread_state().memory_kind) {
    thread_state().memory_kind = kind;
  }
  MemoryKindGuard(const MemoryKindGuard&) = delete;
  MemoryKindGuard& operator=(const MemoryKindGuard&) = delete;
  ~MemoryKindGuard() { thread_state().memory_kind = previous_; }

 private:
  MemoryKind previous_;
};

}  // namespace tapestry
