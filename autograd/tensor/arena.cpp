#include "autograd/tensor/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <iterator>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace tapestry {

namespace {

// Addresses cost nothing until they are used; where they are limited, half as many are tried.
constexpr int64_t kLargestRegion = int64_t{1} << 38;
constexpr int64_t kSmallestRegion = int64_t{1} << 30;
constexpr int64_t kHugePage = int64_t{2} << 20;
// What all arenas of the process may reserve ahead: half of the 47 bits that it can address. The
// rest is for files, stacks and everybody else.
constexpr int64_t kReservable = int64_t{1} << 46;

std::atomic<int64_t>& reserved_by_all() {
  static std::atomic<int64_t> bytes{0};
  return bytes;
}

// The same share of what is left for each: a process of one rank has the largest for its first
// ones, and the arenas of thousands of thread ranks come out with all of it.
int64_t next_region_bytes() {
  constexpr int64_t kShares = kReservable / kLargestRegion;
  const int64_t share = (kReservable - reserved_by_all()) / kShares / kHugePage * kHugePage;
  return std::max(share, kSmallestRegion);
}

int64_t rounded_up(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

void* pointer(uintptr_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

// Makes an access to a free range an error where something watches.
void forbid([[maybe_unused]] uintptr_t address, [[maybe_unused]] int64_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(pointer(address), static_cast<size_t>(bytes));
#endif
}
void permit([[maybe_unused]] uintptr_t address, [[maybe_unused]] int64_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(pointer(address), static_cast<size_t>(bytes));
#endif
}

}  // namespace

Arena::~Arena() {
  for (const Region& region : regions_) {
    permit(region.base, static_cast<int64_t>(region.top - region.base));
    munmap(pointer(region.base), region.end - region.base);
    reserved_by_all() -= static_cast<int64_t>(region.end - region.base);
  }
}

void Arena::insert(Address address, FreeRange range) {
  free_.emplace(address, range);
  by_size_.emplace(range.bytes, address);
}

void Arena::erase(FreeRanges::iterator range) {
  by_size_.erase({range->second.bytes, range->first});
  free_.erase(range);
}

// Cuts a block from the front of a free range. How many of the range's pages are paged in is known,
// not which: they are taken to be the block's.
void* Arena::take(FreeRanges::iterator range, int64_t bytes) {
  const Address address = range->first;
  const FreeRange whole = range->second;
  erase(range);
  const int64_t resident = std::min(whole.resident, bytes);
  resident_bytes_ += bytes - resident;
  if (whole.bytes > bytes) {
    insert(address + static_cast<Address>(bytes), {whole.bytes - bytes, whole.resident - resident});
  }
  permit(address, bytes);
  return pointer(address);
}

Arena::Region* Arena::region_with_room(int64_t bytes) {
  for (Region& region : regions_) {
    if (static_cast<int64_t>(region.end - region.top) >= bytes) {
      return &region;
    }
  }
  const int64_t least = rounded_up(bytes, kHugePage) + kHugePage;
  for (int64_t size = std::max(next_region_bytes(), least); size >= least; size /= 2) {
    void* base = mmap(nullptr, static_cast<size_t>(size), PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
      continue;
    }
    // Advice only: where huge pages are off the blocks work all the same.
    madvise(base, static_cast<size_t>(size), MADV_HUGEPAGE);
    reserved_by_all() += size;
    const auto begin = reinterpret_cast<Address>(base);
    regions_.push_back({begin, begin, begin + static_cast<Address>(size)});
    return &regions_.back();
  }
  return nullptr;
}

// Opens new addresses, after those of a free range at the top if there is one.
void* Arena::grow(int64_t bytes) {
  Region* region = region_with_room(bytes);
  if (region == nullptr) {
    return nullptr;
  }
  FreeRange range = {};
  Address begin = region->top;
  auto last = free_.lower_bound(region->top);
  if (last != free_.begin()) {
    last = std::prev(last);
    const bool at_top = last->first >= region->base &&
                        last->first + static_cast<Address>(last->second.bytes) == region->top;
    if (at_top) {
      begin = last->first;
      range = last->second;
    }
  }
  const int64_t missing = bytes - range.bytes;
  if (mprotect(pointer(region->top), static_cast<size_t>(missing), PROT_READ | PROT_WRITE) != 0) {
    return nullptr;
  }
  if (range.bytes > 0) {
    erase(last);
  }
  region->top += static_cast<Address>(missing);
  insert(begin, {bytes, range.resident});
  return take(free_.find(begin), bytes);
}

int64_t Arena::fresh_bytes(int64_t bytes) const {
  const auto fit = by_size_.lower_bound({bytes, 0});
  return fit == by_size_.end() ? bytes
                               : bytes - std::min(bytes, free_.find(fit->second)->second.resident);
}

bool Arena::owns(const void* block) const {
  const auto address = reinterpret_cast<Address>(block);
  return std::any_of(regions_.begin(), regions_.end(), [address](const Region& region) {
    return region.base <= address && address < region.end;
  });
}

void* Arena::allocate(int64_t bytes) {
  const auto fit = by_size_.lower_bound({bytes, 0});
  return fit != by_size_.end() ? take(free_.find(fit->second), bytes) : grow(bytes);
}

void Arena::deallocate(void* block, int64_t bytes) noexcept {
  auto address = reinterpret_cast<Address>(block);
  forbid(address, bytes);
  FreeRange range = {bytes, bytes};
  const auto touches_border = [&](Address border) {
    return std::any_of(regions_.begin(), regions_.end(),
                       [&](const Region& region) { return region.base == border; });
  };
  const auto next = free_.lower_bound(address);
  if (next != free_.end() && next->first == address + static_cast<Address>(bytes) &&
      !touches_border(next->first)) {
    range.bytes += next->second.bytes;
    range.resident += next->second.resident;
    erase(next);
  }
  const auto after = free_.lower_bound(address);
  if (after != free_.begin() && !touches_border(address)) {
    const auto previous = std::prev(after);
    if (previous->first + static_cast<Address>(previous->second.bytes) == address) {
      address = previous->first;
      range.bytes += previous->second.bytes;
      range.resident += previous->second.resident;
      erase(previous);
    }
  }
  insert(address, range);
}

void Arena::release() noexcept {
  for (auto& [address, range] : free_) {
    madvise(pointer(address), static_cast<size_t>(range.bytes), MADV_DONTNEED);
    resident_bytes_ -= range.resident;
    range.resident = 0;
  }
}

}  // namespace tapestry
