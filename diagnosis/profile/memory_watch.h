// Who holds which memory, now and at the peak.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "autograd/tensor/allocator.h"
#include "diagnosis/profile/recording.h"

namespace tapestry::profile {

/// The allocator's peak and those who held it.
struct HeldAtPeak {
  int64_t bytes = 0;
  std::vector<HeldMemory> held;  ///< largest first; their bytes sum to `bytes`
};

/// Watches an allocator from its making to its end. Blocks that were there before belong to nobody
/// but their kind. The peak is that of the allocator since the last reset_peak() under the watch,
/// or the highest since the watch was made. Thread safe.
class MemoryWatch final : public AllocationObserver {
 public:
  /// RuntimeError if the allocator is observed already.
  explicit MemoryWatch(Ref<CachingAllocator> allocator);
  MemoryWatch(const MemoryWatch&) = delete;
  MemoryWatch& operator=(const MemoryWatch&) = delete;
  ~MemoryWatch() override;

  /// Says of a block, whenever it was made, what it is: of memory that was asked for before anybody
  /// knew. Nothing happens if the address is not that of a block which is handed out and was asked
  /// for under the watch.
  void label(const void* data, std::string_view module, std::string_view op);

  HeldAtPeak at_peak() const;

  /// Notes the bytes in use whenever they change, from now on.
  void start_points();
  /// Ends that, and returns them.
  std::vector<MemoryPoint> take_points();

  void allocated(const void* data,
                 int64_t bytes,
                 const BlockOwner& owner,
                 int64_t current,
                 bool at_peak) override;
  void deallocated(const void* data,
                   int64_t bytes,
                   MemoryKind kind,
                   int64_t current) noexcept override;
  void peak_was_reset() override;
  std::vector<HeldMemory> held() const override;

 private:
  struct Holder {  // all blocks of one owner
    HeldMemory now;
    int64_t peak_bytes = 0;
    int64_t peak_blocks = 0;
  };
  struct Block {
    size_t holder;
    int64_t bytes;
    uint64_t number;
  };

  size_t holder_of(const BlockOwner& owner);
  size_t holder_named(std::string_view module, std::string op, MemoryKind kind);
  void keep_peak();
  void note_point(int64_t current);

  Ref<CachingAllocator> allocator_;
  mutable std::mutex mutex_;
  std::unordered_map<BlockOwner, size_t, HashOfBlockOwner> by_owner_;
  std::unordered_map<std::string, size_t> by_name_;
  std::vector<Holder> holders_;
  std::unordered_map<const void*, Block> blocks_;
  uint64_t blocks_made_ = 0;
  uint64_t made_at_peak_ = 0;  // blocks up to this number existed at the peak
  bool is_at_peak_ = false;    // what is held now is the peak
  bool notes_points_ = false;
  std::vector<MemoryPoint> points_;
};

}  // namespace tapestry::profile
