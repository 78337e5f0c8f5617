// The caching allocator: freed blocks are kept and handed out again, so that a training step in
// steady state asks the system for nothing and touches no fresh page.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <limits>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "autograd/tensor/arena.h"
#include "autograd/tensor/block_owner.h"
#include "autograd/tensor/memory_kind.h"
#include "autograd/tensor/ref.h"

namespace tapestry {

/// Counters of one allocator. Bytes are those of whole blocks (requests rounded up).
struct MemoryStats {
  int64_t current_bytes = 0;       ///< in blocks handed out
  int64_t peak_bytes = 0;          ///< highest current_bytes since the last reset_peak()
  int64_t reserved_bytes = 0;      ///< held from the system: handed out and cached
  int64_t allocations = 0;         ///< requests served
  int64_t system_allocations = 0;  ///< of these, the ones that cached memory could not serve
  std::array<int64_t, kNumMemoryKinds> current_by_kind{};
  std::array<int64_t, kNumMemoryKinds> peak_by_kind{};
};

/// A table of the counters, in MiB, that people can read.
std::ostream& operator<<(std::ostream& out, const MemoryStats& stats);

/// Serves 64-byte aligned blocks: small ones from size bins (eight bins per doubling, so at most an
/// eighth of a block is slack), those of kLargeBlock and more from an arena on huge pages, in which
/// a freed block serves any other size. What stays from step to step (parameters, optimizer) has an
/// arena of its own: between the blocks that come and go it would leave gaps that fit nothing. What
/// is freed in one arena serves the other in whole huge pages. Thread safe.
class CachingAllocator final : public RefCounted {
 public:
  static constexpr int64_t kLargeBlock = int64_t{1} << 17;       // bytes
  static constexpr int64_t kTouchedRequest = int64_t{4} << 20;   // bytes fresh from the system
  static constexpr int64_t kCheckedRequest = int64_t{64} << 20;  // the same

  struct Block {
    void* data = nullptr;
    int64_t bytes = 0;  ///< usable size
    MemoryKind kind = MemoryKind::kActivation;
  };

  ~CachingAllocator() override;

  /// A block of at least the given size; its content is undefined. If kTouchedRequest bytes of it
  /// or more are fresh from the system, all threads page them in (kernels::first_touch).
  /// RuntimeError, with the running op, the size, the statistics and the ten largest holders (of
  /// blocks of kLargeBlock and more; of all blocks where an observer tells them), if it cannot be
  /// had even after the cache was released: the system refuses it, it exceeds what the machine has
  /// left (asked for requests of kCheckedRequest and more, since Linux promises more memory than
  /// there is and ends the process that uses it), or it exceeds the limit.
  Block allocate(int64_t bytes, MemoryKind kind);
  void deallocate(const Block& block) noexcept;

  /// Bounds reserved_bytes from now on; a negative number: no bound. What is held already stays.
  void set_limit(int64_t bytes);
  /// The bound, or -1.
  int64_t limit() const;

  /// Tells the observer of every block from now on; null: nobody. RuntimeError if there is another.
  void set_observer(AllocationObserver* observer);

  MemoryStats stats() const;
  void reset_peak();
  /// Returns every cached block to the system.
  void release_cache();

  /// Size that a request is rounded up to.
  static int64_t rounded_size(int64_t bytes);

 private:
  static constexpr int kNumBins = 8 * 12;
  static int bin_of(int64_t rounded_bytes);
  Block allocate_untouched(int64_t bytes, MemoryKind kind, int64_t* fresh);
  void* allocate_small(int64_t rounded);
  void* allocate_large(int64_t rounded, MemoryKind kind);
  Arena& arena_for(MemoryKind kind);
  int64_t arena_bytes() const;
  int64_t fresh_bytes(int64_t rounded, MemoryKind kind);
  void make_room(int64_t bytes, int64_t rounded, MemoryKind kind);
  [[noreturn]] void refuse(int64_t bytes, MemoryKind kind, const std::string& reason) const;
  std::vector<HeldMemory> held() const;
  void release_cache_locked();

  mutable std::mutex mutex_;
  std::array<std::vector<void*>, kNumBins> bins_;
  int64_t small_reserved_ = 0;  // bytes of small blocks, handed out or cached
  int64_t small_cached_ = 0;    // of these, in the bins
  int64_t limit_ = std::numeric_limits<int64_t>::max();
  Arena lasting_;  // blocks of kinds that stay from step to step
  Arena passing_;  // all others
  MemoryStats stats_;
  struct LargeBlock {
    int64_t bytes;
    BlockOwner owner;
  };
  std::unordered_map<const void*, LargeBlock> large_blocks_;  // handed out
  AllocationObserver* observer_ = nullptr;
};

}  // namespace tapestry
