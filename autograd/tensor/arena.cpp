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
// The system has room for 65,530 ranges of addresses in a process, and ends what asks for more.
constexpr size_t kMostSeams = 16384;

#ifdef MREMAP_DONTUNMAP
constexpr int kKeepAddresses = MREMAP_DONTUNMAP;
#else
constexpr int kKeepAddresses = 4;  // since Linux 5.7; an older one refuses, and moves nothing
#endif

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

uintptr_t page_at(uintptr_t address) {
  return address / static_cast<uintptr_t>(kHugePage) * static_cast<uintptr_t>(kHugePage);
}
uintptr_t page_from(uintptr_t address) {
  return page_at(address + static_cast<uintptr_t>(kHugePage) - 1);
}

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

// Addresses that begin with a huge page; null if there are not so many left.
void* reserve(int64_t bytes) {
  const auto whole = static_cast<size_t>(bytes + kHugePage);
  void* mapped =
      mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    return nullptr;
  }
  const auto begin = reinterpret_cast<uintptr_t>(mapped);
  const uintptr_t base = page_from(begin);
  const uintptr_t end = base + static_cast<uintptr_t>(bytes);
  if (base > begin) {
    munmap(mapped, base - begin);
  }
  munmap(pointer(end), begin + whole - end);
  // Advice only: where huge pages are off the blocks work all the same.
  madvise(pointer(base), static_cast<size_t>(bytes), MADV_HUGEPAGE);
  return pointer(base);
}

// The pages of one range of addresses become those of another, which had none; both stay usable.
bool move_pages(uintptr_t from, uintptr_t to, size_t bytes) {
  constexpr int kFlags = MREMAP_MAYMOVE | MREMAP_FIXED | kKeepAddresses;
  if (mremap(pointer(from), bytes, bytes, kFlags, pointer(to)) != MAP_FAILED) {
    // Changes nothing, but for emulators of user programs, which take the addresses for gone.
    mprotect(pointer(from), bytes, PROT_READ | PROT_WRITE);
    return true;
  }
  // Where the system failed halfway the addresses are nobody's; else they are still there.
  constexpr int kThere = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
  void* const again = mmap(pointer(to), bytes, PROT_READ | PROT_WRITE, kThere, -1, 0);
  if (again == pointer(to)) {
    madvise(again, bytes, MADV_HUGEPAGE);
  } else if (again != MAP_FAILED) {  // before Linux 4.17
    munmap(again, bytes);
  }
  return false;
}

}  // namespace

Arena::~Arena() {
  for (const Region& region : regions_) {
    permit(region.base, static_cast<int64_t>(region.top - region.base));
    munmap(pointer(region.base), region.end - region.base);
    reserved_by_all() -= static_cast<int64_t>(region.end - region.base);
  }
}

void Arena::insert(Address address, int64_t bytes) {
  free_.emplace(address, bytes);
  by_size_.emplace(bytes, address);
}

void Arena::erase(FreeRanges::iterator range) {
  by_size_.erase({range->second, range->first});
  free_.erase(range);
}

// Cuts a block from the front of a free range.
void* Arena::take(FreeRanges::iterator range, int64_t bytes, Arena* lender) {
  const Address address = range->first;
  const int64_t whole = range->second;
  const Address end = address + static_cast<Address>(bytes);
  erase(range);
  if (whole > bytes) {
    insert(end, whole - bytes);
  }
  page_in(address, end, lender);
  permit(address, bytes);
  return pointer(address);
}

// Counts all of a block as paged in, which it is when it is used. Of its huge pages without memory,
// those that can be had from free ranges are.
void Arena::page_in(Address begin, Address end, Arena* lender) {
  for (Pages hole = absent_.first_behind(begin); hole.end > 0 && hole.begin < end;
       hole = absent_.first_behind(hole.end)) {
    const Pages pages = {std::max(page_from(hole.begin), page_at(begin)),
                         std::min(page_at(hole.end), page_from(end))};
    if (pages.begin < pages.end) {
      const Address filled = fill(pages, *this);
      if (filled < pages.end && lender != nullptr) {
        fill({filled, pages.end}, *lender);
      }
    }
  }
  resident_bytes_ += absent_.erase(begin, end);
}

// Moves idle pages of the lender to pages without memory; up to where they reach.
Arena::Address Arena::fill(Pages pages, Arena& lender) {
  while (pages.begin < pages.end) {
    const auto idle = lender.idle_pages(static_cast<int64_t>(pages.end - pages.begin));
    if (!idle) {
      break;
    }
    move_here(*idle, pages.begin, lender);
    pages.begin += idle->end - idle->begin;
  }
  return pages.begin;
}

// Whole huge pages of a free range, at most so many bytes; those opened last come first, because
// what lies in front of them is used by more of the blocks that come and go.
std::optional<Arena::Pages> Arena::idle_pages(int64_t most) const {
  for (auto range = free_.rbegin(); range != free_.rend(); ++range) {
    const Address end = page_at(range->first + static_cast<Address>(range->second));
    Address begin = page_from(range->first);
    while (begin < end) {
      const Pages hole = absent_.first_behind(begin);
      Address reach = hole.end == 0 ? end : std::min(end, page_at(hole.begin));
      if (begin < reach) {
        // The system moves what it has not put apart.
        const auto seam = seams_.upper_bound(begin);
        reach = seam == seams_.end() ? reach : std::min(reach, *seam);
        return Pages{begin, std::min(reach, begin + static_cast<Address>(most))};
      }
      begin = page_from(hole.end);
    }
  }
  return std::nullopt;
}

// Where the system does not move pages, it gets those back that would have moved, and the block is
// paged in anew: that takes longer, and as much memory.
void Arena::move_here(Pages from, Address to, Arena& lender) {
  const Address bytes = from.end - from.begin;
  if (seams_.size() < kMostSeams && move_pages(from.begin, to, bytes)) {
    seams_.erase(seams_.lower_bound(to), seams_.upper_bound(to + bytes));
    seams_.insert({to, to + bytes});
    resident_bytes_ += absent_.erase(to, to + bytes);
  } else {
    madvise(pointer(from.begin), bytes, MADV_DONTNEED);
  }
  lender.resident_bytes_ -= lender.absent_.insert(from.begin, from.end);
}

Arena::Region* Arena::region_with_room(int64_t bytes) {
  for (Region& region : regions_) {
    if (static_cast<int64_t>(region.end - region.top) >= bytes) {
      return &region;
    }
  }
  const int64_t least = rounded_up(bytes, kHugePage) + kHugePage;
  for (int64_t size = std::max(next_region_bytes(), least); size >= least;
       size = size / 2 / kHugePage * kHugePage) {
    void* base = reserve(size);
    if (base == nullptr) {
      continue;
    }
    reserved_by_all() += size;
    const auto begin = reinterpret_cast<Address>(base);
    regions_.push_back({begin, begin, begin + static_cast<Address>(size)});
    return &regions_.back();
  }
  return nullptr;
}

// The free range that ends where the region's untouched addresses begin.
std::optional<Arena::FreeRanges::const_iterator> Arena::free_at_top(const Region& region) const {
  auto last = free_.lower_bound(region.top);
  if (last == free_.begin()) {
    return std::nullopt;
  }
  last = std::prev(last);
  const bool is_at_top =
      last->first >= region.base && last->first + static_cast<Address>(last->second) == region.top;
  return is_at_top ? std::optional(last) : std::nullopt;
}

// Opens new addresses, after those of a free range at the top if there is one.
void* Arena::grow(int64_t bytes, Arena* lender) {
  Region* region = region_with_room(bytes);
  if (region == nullptr) {
    return nullptr;
  }
  Address begin = region->top;
  const auto last = free_at_top(*region);
  if (last) {
    begin = (*last)->first;
  }
  // Both ends of a region are those of huge pages.
  const Address top = page_from(begin + static_cast<Address>(bytes));
  if (mprotect(pointer(region->top), top - region->top, PROT_READ | PROT_WRITE) != 0) {
    return nullptr;
  }
  if (last) {
    erase(free_.find(begin));
  }
  absent_.insert(region->top, top);
  forbid(region->top, static_cast<int64_t>(top - region->top));
  region->top = top;
  insert(begin, static_cast<int64_t>(top - begin));
  return take(free_.find(begin), bytes, lender);
}

int64_t Arena::fresh_bytes(int64_t bytes) const {
  const auto fit = by_size_.lower_bound({bytes, 0});
  return fit == by_size_.end()
             ? bytes
             : absent_.count(fit->second, fit->second + static_cast<Address>(bytes));
}

bool Arena::owns(const void* block) const {
  const auto address = reinterpret_cast<Address>(block);
  return std::any_of(regions_.begin(), regions_.end(), [address](const Region& region) {
    return region.base <= address && address < region.end;
  });
}

void* Arena::allocate(int64_t bytes, Arena* lender) {
  const auto fit = by_size_.lower_bound({bytes, 0});
  return fit != by_size_.end() ? take(free_.find(fit->second), bytes, lender) : grow(bytes, lender);
}

void Arena::deallocate(void* block, int64_t bytes) noexcept {
  auto address = reinterpret_cast<Address>(block);
  forbid(address, bytes);
  const auto touches_border = [&](Address border) {
    return std::any_of(regions_.begin(), regions_.end(),
                       [&](const Region& region) { return region.base == border; });
  };
  const auto next = free_.lower_bound(address);
  if (next != free_.end() && next->first == address + static_cast<Address>(bytes) &&
      !touches_border(next->first)) {
    bytes += next->second;
    erase(next);
  }
  const auto after = free_.lower_bound(address);
  if (after != free_.begin() && !touches_border(address)) {
    const auto previous = std::prev(after);
    if (previous->first + static_cast<Address>(previous->second) == address) {
      address = previous->first;
      bytes += previous->second;
      erase(previous);
    }
  }
  insert(address, bytes);
}

void Arena::release() noexcept {
  for (const auto& [address, bytes] : free_) {
    madvise(pointer(address), static_cast<size_t>(bytes), MADV_DONTNEED);
    resident_bytes_ -= absent_.insert(address, address + static_cast<Address>(bytes));
  }
}

}  // namespace tapestry
