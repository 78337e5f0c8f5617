// The state of one rank. Ranks may be processes or threads of one process, so nothing of this is
// global: free functions forward to the calling thread's current context.
#pragma once

#include <cstdint>
#include <memory>
#include <typeindex>
#include <unordered_map>

#include "autograd/tensor/allocator.h"
#include "autograd/tensor/generator.h"

namespace tapestry {

/// Allocator, generator, grad mode, tape counter, and the state that higher layers attach. A
/// context belongs to one thread at a time; a helper thread takes it over with RankContextGuard
/// only while the owner does not use it.
class RankContext {
 public:
  explicit RankContext(int rank = 0, int world_size = 1);
  RankContext(const RankContext&) = delete;
  RankContext& operator=(const RankContext&) = delete;
  ~RankContext();

  /// The calling thread's context: the one of the innermost RankContextGuard, else the process
  /// default.
  static RankContext& current() {
    RankContext* context = current_;
    return context != nullptr ? *context : process_default();
  }

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }

  CachingAllocator& allocator() { return *allocator_; }
  Generator& default_generator() { return default_generator_; }

  bool grad_enabled = true;                          ///< see grad_mode.h
  bool anomaly_enabled = false;                      ///< see grad_mode.h
  MemoryKind memory_kind = MemoryKind::kActivation;  ///< of new blocks, see MemoryKindGuard
  void* recording_node = nullptr;                    ///< the tape node whose forward is running
  uint64_t next_sequence_number() { return ++sequence_number_; }

  /// The state of type T that a higher layer keeps per rank, default-constructed on first use.
  template <class T>
  T& slot() {
    std::shared_ptr<void>& entry = slots_[std::type_index(typeid(T))];
    if (entry == nullptr) {
      entry = std::make_shared<T>();
    }
    return *static_cast<T*>(entry.get());
  }

 private:
  friend class RankContextGuard;
  static RankContext& process_default();
  static thread_local constinit RankContext* current_;

  int rank_;
  int world_size_;
  Ref<CachingAllocator> allocator_;
  Generator default_generator_;
  uint64_t sequence_number_ = 0;
  std::unordered_map<std::type_index, std::shared_ptr<void>> slots_;
};

/// Makes a context the calling thread's current one for the guard's lifetime.
class RankContextGuard {
 public:
  explicit RankContextGuard(RankContext& context) : previous_(RankContext::current_) {
    RankContext::current_ = &context;
  }
  RankContextGuard(const RankContextGuard&) = delete;
  RankContextGuard& operator=(const RankContextGuard&) = delete;
  ~RankContextGuard() { RankContext::current_ = previous_; }

 private:
  RankContext* previous_;
};

/// Counts blocks allocated during its lifetime under the given kind.
class MemoryKindGuard {
 public:
  explicit MemoryKindGuard(MemoryKind kind) : previous_(RankContext::current().memory_kind) {
    RankContext::current().memory_kind = kind;
  }
  MemoryKindGuard(const MemoryKindGuard&) = delete;
  MemoryKindGuard& operator=(const MemoryKindGuard&) = delete;
  ~MemoryKindGuard() { RankContext::current().memory_kind = previous_; }

 private:
  MemoryKind previous_;
};

/// Counters of the current rank's allocator.
MemoryStats memory_stats();
/// Seeds the current rank's default generator.
void manual_seed(uint64_t seed);

}  // namespace tapestry
