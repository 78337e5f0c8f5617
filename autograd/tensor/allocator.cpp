#include "autograd/tensor/allocator.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <iomanip>
#include <new>
#include <ostream>
#include <sstream>
#include <utility>

#include "autograd/kernels/memory.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/system_memory.h"

namespace tapestry {

namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kAddressable = int64_t{1} << 47;  // bytes, by one process
// Of what the machine has left, the part that stays for page tables and everybody else.
constexpr int64_t kReserve = 64;

std::string size_text(int64_t bytes) {
  const bool large = bytes >= int64_t{1} << 30;
  std::ostringstream out;
  out << std::fixed << std::setprecision(1)
      << static_cast<double>(bytes) / static_cast<double>(int64_t{1} << (large ? 30 : 20))
      << (large ? " GiB" : " MiB");
  return out.str();
}

}  // namespace

std::string_view name_of(MemoryKind kind) {
  constexpr std::array<std::string_view, kNumMemoryKinds> kNames = {
      "activations", "parameters", "gradients", "optimizer", "workspace"};
  return kNames[static_cast<size_t>(kind)];
}

std::ostream& operator<<(std::ostream& out, const MemoryStats& stats) {
  const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  const auto flags = out.flags();
  out << std::fixed << std::setprecision(1) << "memory: " << mib(stats.current_bytes)
      << " MiB in use, peak " << mib(stats.peak_bytes) << " MiB, reserved "
      << mib(stats.reserved_bytes) << " MiB; " << stats.allocations << " allocations, "
      << stats.system_allocations << " of them from the system\n";
  for (int k = 0; k < kNumMemoryKinds; ++k) {
    const auto i = static_cast<size_t>(k);
    out << "  " << std::left << std::setw(12) << name_of(static_cast<MemoryKind>(k)) << std::right
        << std::setw(10) << mib(stats.current_by_kind[i]) << " MiB, peak " << std::setw(10)
        << mib(stats.peak_by_kind[i]) << " MiB\n";
  }
  out.flags(flags);
  return out;
}

CachingAllocator::~CachingAllocator() { release_cache_locked(); }

// Bins are 64 * 2^e * (8 + i) / 8 for i in [0, 8), rounded up to the alignment: eight steps to
// each doubling.
int64_t CachingAllocator::rounded_size(int64_t bytes) {
  if (bytes >= kLargeBlock) {
    return (bytes + Arena::kGranularity - 1) / Arena::kGranularity * Arena::kGranularity;
  }
  const int64_t units = std::max<int64_t>((bytes + kAlignment - 1) / kAlignment, 1);
  if (units <= 8) {
    return units * kAlignment;
  }
  const int shift = std::bit_width(static_cast<uint64_t>(units - 1)) - 4;
  const int64_t step = int64_t{1} << std::max(shift, 0);
  return (units + step - 1) / step * step * kAlignment;
}

int CachingAllocator::bin_of(int64_t rounded_bytes) {
  const int64_t units = rounded_bytes / kAlignment;
  if (units <= 8) {
    return static_cast<int>(units - 1);
  }
  const int shift = std::bit_width(static_cast<uint64_t>(units - 1)) - 4;
  return 8 * (shift + 1) + static_cast<int>((units >> shift) - 8) - 1;
}

void* CachingAllocator::allocate_small(int64_t rounded) {
  std::vector<void*>& bin = bins_[static_cast<size_t>(bin_of(rounded))];
  if (!bin.empty()) {
    void* data = bin.back();
    bin.pop_back();
    small_cached_ -= rounded;
    return data;
  }
  void* data = std::aligned_alloc(static_cast<size_t>(kAlignment), static_cast<size_t>(rounded));
  if (data != nullptr) {
    small_reserved_ += rounded;
  }
  return data;
}

Arena& CachingAllocator::arena_for(MemoryKind kind) {
  const bool lasts = kind == MemoryKind::kParameter || kind == MemoryKind::kOptimizer;
  return lasts ? lasting_ : passing_;
}

void* CachingAllocator::allocate_large(int64_t rounded, MemoryKind kind) {
  Arena& arena = arena_for(kind);
  return arena.allocate(rounded, &arena == &lasting_ ? &passing_ : &lasting_);
}

int64_t CachingAllocator::arena_bytes() const {
  return lasting_.resident_bytes() + passing_.resident_bytes();
}

int64_t CachingAllocator::fresh_bytes(int64_t rounded, MemoryKind kind) {
  if (rounded >= kLargeBlock) {
    return arena_for(kind).fresh_bytes(rounded);
  }
  return bins_[static_cast<size_t>(bin_of(rounded))].empty() ? rounded : 0;
}

void CachingAllocator::refuse(int64_t bytes, MemoryKind kind, const std::string& reason) const {
  constexpr size_t kNamed = 10;
  const BlockOwner owner = current_owner(kind);
  const std::string op = op_text(owner);
  const std::string holders = held_text(held(), kNamed);
  throw RuntimeError(concat(op.empty() ? "allocate" : op, ": no memory for ", bytes, " bytes (",
                            size_text(bytes), ", ", name_of(kind), "): ", reason,
                            owner.module.empty() ? "" : concat("\nmodule: ", owner.module), "\n",
                            stats_, holders.empty() ? "" : "largest holders:\n", holders));
}

// Of small blocks nothing is known unless somebody observes.
std::vector<HeldMemory> CachingAllocator::held() const {
  if (observer_ != nullptr) {
    return observer_->held();
  }
  std::unordered_map<BlockOwner, HeldMemory, HashOfBlockOwner> by_owner;
  for (const auto& [data, block] : large_blocks_) {
    HeldMemory& held = by_owner[block.owner];
    held.bytes += block.bytes;
    ++held.blocks;
  }
  std::vector<HeldMemory> out;
  out.reserve(by_owner.size());
  for (const auto& [owner, sum] : by_owner) {
    out.push_back({std::string(owner.module), op_text(owner), owner.kind, sum.bytes, sum.blocks});
  }
  return out;
}

// Releases the cache where a request would exceed the limit or what the machine has; throws where
// that does not help.
void CachingAllocator::make_room(int64_t bytes, int64_t rounded, MemoryKind kind) {
  int64_t fresh = fresh_bytes(rounded, kind);
  if (fresh > limit_ - stats_.reserved_bytes) {
    release_cache_locked();
    fresh = fresh_bytes(rounded, kind);
    if (fresh > limit_ - stats_.reserved_bytes) {
      refuse(bytes, kind,
             concat("the limit is ", size_text(limit_), ", of which ",
                    size_text(stats_.reserved_bytes), " are in use"));
    }
  }
  if (fresh < kCheckedRequest) {
    return;
  }
  const auto available = [] {
    const int64_t left = available_memory();
    return left - left / kReserve;
  };
  if (fresh > available()) {
    release_cache_locked();
    const int64_t left = available();
    if (fresh_bytes(rounded, kind) > left) {
      refuse(bytes, kind, concat("the machine has ", size_text(left), " left for this process"));
    }
  }
}

CachingAllocator::Block CachingAllocator::allocate(int64_t bytes, MemoryKind kind) {
  check<ValueError>(bytes >= 0, "allocate: negative size ", bytes);
  int64_t fresh = 0;
  const Block block = allocate_untouched(bytes, kind, &fresh);
  if (fresh >= kTouchedRequest) {
    kernels::first_touch(block.data, block.bytes);
  }
  return block;
}

CachingAllocator::Block CachingAllocator::allocate_untouched(int64_t bytes,
                                                             MemoryKind kind,
                                                             int64_t* fresh) {
  const std::lock_guard lock(mutex_);
  const int64_t rounded = rounded_size(std::min(bytes, kAddressable));
  const bool bounded = limit_ != std::numeric_limits<int64_t>::max();
  if (rounded >= kCheckedRequest || bounded) [[unlikely]] {
    make_room(bytes, rounded, kind);
  }
  const auto serve = [&] {
    return rounded >= kLargeBlock ? allocate_large(rounded, kind) : allocate_small(rounded);
  };
  void* data = serve();
  if (data == nullptr) {
    release_cache_locked();
    data = serve();
  }
  if (data == nullptr) {
    refuse(bytes, kind, "the system has none left");
  }
  const int64_t reserved = small_reserved_ + arena_bytes();
  *fresh = reserved - stats_.reserved_bytes;
  stats_.system_allocations += *fresh > 0 ? 1 : 0;
  stats_.reserved_bytes = reserved;
  ++stats_.allocations;
  stats_.current_bytes += rounded;
  stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.current_bytes);
  auto& by_kind = stats_.current_by_kind[static_cast<size_t>(kind)];
  auto& peak = stats_.peak_by_kind[static_cast<size_t>(kind)];
  by_kind += rounded;
  peak = std::max(peak, by_kind);
  if (rounded >= kLargeBlock) {
    large_blocks_.insert_or_assign(data, LargeBlock{rounded, current_owner(kind)});
  }
  if (observer_ != nullptr) [[unlikely]] {
    observer_->allocated(data, rounded, current_owner(kind), stats_.current_bytes,
                         stats_.current_bytes == stats_.peak_bytes);
  }
  return {data, rounded, kind};
}

void CachingAllocator::deallocate(const Block& block) noexcept {
  const std::lock_guard lock(mutex_);
  stats_.current_bytes -= block.bytes;
  stats_.current_by_kind[static_cast<size_t>(block.kind)] -= block.bytes;
  if (observer_ != nullptr) [[unlikely]] {
    observer_->deallocated(block.data, block.bytes, block.kind, stats_.current_bytes);
  }
  if (block.bytes >= kLargeBlock) {
    large_blocks_.erase(block.data);
    (lasting_.owns(block.data) ? lasting_ : passing_).deallocate(block.data, block.bytes);
    return;
  }
  try {
    bins_[static_cast<size_t>(bin_of(block.bytes))].push_back(block.data);
    small_cached_ += block.bytes;
  } catch (const std::bad_alloc&) {  // the list cannot grow: then the block is not kept
    std::free(block.data);
    small_reserved_ -= block.bytes;
  }
}

void CachingAllocator::set_limit(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  limit_ = bytes < 0 ? std::numeric_limits<int64_t>::max() : bytes;
}

int64_t CachingAllocator::limit() const {
  const std::lock_guard lock(mutex_);
  return limit_ == std::numeric_limits<int64_t>::max() ? -1 : limit_;
}

MemoryStats CachingAllocator::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void CachingAllocator::reset_peak() {
  const std::lock_guard lock(mutex_);
  stats_.peak_bytes = stats_.current_bytes;
  stats_.peak_by_kind = stats_.current_by_kind;
  if (observer_ != nullptr) {
    observer_->peak_was_reset();
  }
}

void CachingAllocator::set_observer(AllocationObserver* observer) {
  const std::lock_guard lock(mutex_);
  check<RuntimeError>(observer == nullptr || observer_ == nullptr || observer == observer_,
                      "allocator: it has an observer already");
  observer_ = observer;
}

void CachingAllocator::release_cache() {
  const std::lock_guard lock(mutex_);
  release_cache_locked();
}

void CachingAllocator::release_cache_locked() {
  for (auto& bin : bins_) {
    for (void* data : bin) {
      std::free(data);
    }
    bin.clear();
  }
  small_reserved_ -= std::exchange(small_cached_, 0);
  lasting_.release();
  passing_.release();
  stats_.reserved_bytes = small_reserved_ + arena_bytes();
}

}  // namespace tapestry
