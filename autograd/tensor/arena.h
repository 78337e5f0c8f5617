// Address space from which large blocks are cut, and in which freed neighbours become one again.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "autograd/tensor/address_set.h"

namespace tapestry {

/// Best fit over ranges of reserved address space. Pages that were used once stay with the arena,
/// so that what one block has paged in serves the next, whatever the sizes of the two; a step whose
/// activations make room for gradients needs no memory for both. Where a block lies on addresses
/// without memory, huge pages of free ranges move there: memory that is free in pieces serves a
/// block that is larger than any of them, and nothing is asked of the system while a whole huge
/// page is unused. Not thread safe.
class Arena {
 public:
  /// Sizes are multiples of this; so are the distances between blocks.
  static constexpr int64_t kGranularity = 4096;

  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  /// A block of `bytes` (a positive multiple of kGranularity), its content undefined; null if the
  /// system has no memory or no addresses left. Where free ranges of this arena have too little
  /// memory, those of `lender` give theirs.
  void* allocate(int64_t bytes, Arena* lender = nullptr);
  void deallocate(void* block, int64_t bytes) noexcept;
  /// Gives the pages of all free ranges back to the system.
  void release() noexcept;

  /// Of a block of `bytes`, the bytes that are not paged in yet: what allocate() would take from
  /// the system if nothing could move.
  int64_t fresh_bytes(int64_t bytes) const;
  /// Whether the block is one of this arena's.
  bool owns(const void* block) const;

  /// Of the pages held: those in blocks, and those in free ranges.
  int64_t resident_bytes() const { return resident_bytes_; }

 private:
  using Address = uintptr_t;
  /// One reservation: [base, top) is cut into blocks and free ranges, the rest is untouched.
  struct Region {
    Address base = 0;
    Address top = 0;
    Address end = 0;
  };
  using FreeRanges = std::map<Address, int64_t>;  // bytes by address
  using Pages = AddressSet::Range;                // whole huge pages

  void* take(FreeRanges::iterator range, int64_t bytes, Arena* lender);
  void* grow(int64_t bytes, Arena* lender);
  void insert(Address address, int64_t bytes);
  void erase(FreeRanges::iterator range);
  Region* region_with_room(int64_t bytes);
  std::optional<FreeRanges::const_iterator> free_at_top(const Region& region) const;
  void page_in(Address begin, Address end, Arena* lender);
  Address fill(Pages pages, Arena& lender);
  std::optional<Pages> idle_pages(int64_t most) const;
  void move_here(Pages from, Address to, Arena& lender);

  std::vector<Region> regions_;
  FreeRanges free_;
  std::set<std::pair<int64_t, Address>> by_size_;
  AddressSet absent_;        // of free ranges, what has no memory
  std::set<Address> seams_;  // where moved pages begin and end: there the system keeps them apart
  int64_t resident_bytes_ = 0;
};

}  // namespace tapestry
