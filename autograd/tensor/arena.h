// Address space from which large blocks are cut, and in which freed neighbours become one again.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace tapestry {

/// Best fit over ranges of reserved address space. Pages that were used once stay with the arena,
/// so that what one block has paged in serves the next, whatever the sizes of the two; a step whose
/// activations make room for gradients needs no memory for both. Not thread safe.
class Arena {
 public:
  /// Sizes are multiples of this; so are the distances between blocks.
  static constexpr int64_t kGranularity = 4096;

  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  /// A block of `bytes` (a positive multiple of kGranularity), its content undefined; null if the
  /// system has no memory or no addresses left.
  void* allocate(int64_t bytes);
  void deallocate(void* block, int64_t bytes) noexcept;
  /// Gives the pages of all free ranges back to the system.
  void release() noexcept;

  /// Of a block of `bytes`, the bytes that are not paged in yet: what allocate() would take from
  /// the system.
  int64_t fresh_bytes(int64_t bytes) const;
  /// Whether a free range has room for such a block.
  bool has_room(int64_t bytes) const { return by_size_.lower_bound({bytes, 0}) != by_size_.end(); }
  /// Whether the block is one of this arena's.
  bool owns(const void* block) const;

  /// Of the pages held: those in blocks, and those in free ranges.
  int64_t resident_bytes() const { return resident_bytes_; }

 private:
  using Address = uintptr_t;
  struct FreeRange {
    int64_t bytes = 0;
    int64_t resident = 0;  ///< of these, still paged in
  };
  /// One reservation: [base, top) is cut into blocks and free ranges, the rest is untouched.
  struct Region {
    Address base = 0;
    Address top = 0;
    Address end = 0;
  };
  using FreeRanges = std::map<Address, FreeRange>;

  void* take(FreeRanges::iterator range, int64_t bytes);
  void* grow(int64_t bytes);
  void insert(Address address, FreeRange range);
  void erase(FreeRanges::iterator range);
  Region* region_with_room(int64_t bytes);

  std::vector<Region> regions_;
  FreeRanges free_;
  std::set<std::pair<int64_t, Address>> by_size_;
  int64_t resident_bytes_ = 0;
};

}  // namespace tapestry
