// The state of one rank. Ranks may be processes or threads of one process, so nothing of this is
// global: free functions forward to the calling thread's current context. What scopes switch (grad
// mode, for example) belongs to the thread instead: see thread_state.h.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <typeindex>
#include <unordered_map>

#include "autograd/kernels/machine/team_state.h"
#include "autograd/tensor/allocator.h"
#include "autograd/tensor/generator.h"
#include "autograd/tensor/thread_state.h"

namespace tapestry {

/// Allocator, generator, and the state that higher layers attach. Threads that have opened no
/// RankContextGuard share the process default; any other context, too, may be current on several
/// threads at once (a rank's helper threads). Allocator and generator are then shared safely; what
/// a slot holds is shared as its layer says.
class RankContext {
 public:
  explicit RankContext(int rank = 0, int world_size = 1);
  RankContext(const RankContext&) = delete;
  RankContext& operator=(const RankContext&) = delete;
  ~RankContext();

  /// The calling thread's context: the one of the innermost RankContextGuard, else the process
  /// default. The threads of a loop (parallel_for) have that of the thread that started it.
  static RankContext& current() {
    void* context = kernels::team_state().rank_context;
    return context != nullptr ? *static_cast<RankContext*>(context) : process_default();
  }

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }

  CachingAllocator& allocator() { return *allocator_; }
  Generator& default_generator() { return default_generator_; }

  /// The state of type T that a higher layer keeps per rank, default-constructed on first use, by
  /// whichever thread that is. The reference stays valid as long as the context.
  template <class T>
  T& slot() {
    return *static_cast<T*>(
        slot(typeid(T), [] { return std::static_pointer_cast<void>(std::make_shared<T>()); }));
  }

 private:
  void* slot(std::type_index type, std::shared_ptr<void> (*make)());

  static RankContext& process_default();

  int rank_;
  int world_size_;
  Ref<CachingAllocator> allocator_;
  Generator default_generator_;
  std::mutex slots_mutex_;
  std::unordered_map<std::type_index, std::shared_ptr<void>> slots_;
};

/// Makes a context the calling thread's current one for the guard's lifetime. Grad mode and the
/// rest of the thread's state stay as they are.
class RankContextGuard {
 public:
  explicit RankContextGuard(RankContext& context) : previous_(kernels::team_state().rank_context) {
    kernels::team_state().rank_context = &context;
  }
  RankContextGuard(const RankContextGuard&) = delete;
  RankContextGuard& operator=(const RankContextGuard&) = delete;
  ~RankContextGuard() { kernels::team_state().rank_context = previous_; }

 private:
  void* previous_;
};

/// Counters of the current rank's allocator.
MemoryStats memory_stats();
/// Bounds the memory that the current rank's allocator holds, cached blocks included (which are
/// given back before anything is refused): a request beyond it is a RuntimeError. A negative number
/// lifts the bound. See CachingAllocator::set_limit.
void set_memory_limit(int64_t bytes);
/// Seeds the current rank's default generator.
void manual_seed(uint64_t seed);

}  // namespace tapestry
