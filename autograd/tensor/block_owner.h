// Who holds which memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/tensor/memory_kind.h"

namespace tapestry {

/// Where a block was asked for. Texts live for ever.
struct BlockOwner {
  std::string_view op;           ///< the running op; empty: none
  std::string_view backward_of;  ///< the op whose backward was running; empty: none
  std::string_view module;       ///< path of the module that called the op; empty: none
  MemoryKind kind = MemoryKind::kActivation;

  bool operator==(const BlockOwner&) const = default;
};
struct HashOfBlockOwner {
  size_t operator()(const BlockOwner& owner) const;
};

/// What the calling thread is working for.
BlockOwner current_owner(MemoryKind kind);

/// "linear", "backward of linear", "zeros in the backward of linear"; empty: no op.
std::string op_text(const BlockOwner& owner);

/// Bytes that somebody holds.
struct HeldMemory {
  std::string module;
  std::string op;
  MemoryKind kind = MemoryKind::kActivation;
  int64_t bytes = 0;
  int64_t blocks = 0;
};

/// Largest first; of equal ones by name, so that the order is always the same.
void sort_by_size(std::vector<HeldMemory>& held);

/// The largest `count` of them, a line each, and what the others hold together.
std::string held_text(std::vector<HeldMemory> held, size_t count);

/// Is told of every block of an allocator, under the allocator's lock: does not allocate from it.
class AllocationObserver {
 public:
  AllocationObserver() = default;
  AllocationObserver(const AllocationObserver&) = delete;
  AllocationObserver& operator=(const AllocationObserver&) = delete;
  virtual ~AllocationObserver();

  /// `current` bytes are handed out now, this block included; at_peak: never as many before.
  virtual void allocated(
      const void* data, int64_t bytes, const BlockOwner& owner, int64_t current, bool at_peak) = 0;
  virtual void deallocated(const void* data,
                           int64_t bytes,
                           MemoryKind kind,
                           int64_t current) noexcept = 0;
  virtual void peak_was_reset() = 0;
  /// Who holds what now, for the message of a request that cannot be served.
  virtual std::vector<HeldMemory> held() const = 0;
};

}  // namespace tapestry
