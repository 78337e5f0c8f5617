#include "autograd/tensor/allocator.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <iomanip>
#include <ostream>
#include <utility>

#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kAddressable = int64_t{1} << 47;  // bytes, by one process

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

CachingAllocator::Block CachingAllocator::allocate(int64_t bytes, MemoryKind kind) {
  check<ValueError>(bytes >= 0, "allocate: negative size ", bytes);
  const std::lock_guard lock(mutex_);
  const int64_t rounded = rounded_size(std::min(bytes, kAddressable));
  const auto serve = [&] {
    return rounded >= kLargeBlock ? arena_.allocate(rounded) : allocate_small(rounded);
  };
  void* data = serve();
  if (data == nullptr) {
    release_cache_locked();
    data = serve();
  }
  check<RuntimeError>(data != nullptr, "allocate: the system has no ", bytes, " bytes left\n",
                      stats_);
  const int64_t reserved = small_reserved_ + arena_.resident_bytes();
  stats_.system_allocations += reserved > stats_.reserved_bytes ? 1 : 0;
  stats_.reserved_bytes = reserved;
  ++stats_.allocations;
  stats_.current_bytes += rounded;
  stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.current_bytes);
  auto& by_kind = stats_.current_by_kind[static_cast<size_t>(kind)];
  auto& peak = stats_.peak_by_kind[static_cast<size_t>(kind)];
  by_kind += rounded;
  peak = std::max(peak, by_kind);
  return {data, rounded, kind};
}

void CachingAllocator::deallocate(const Block& block) noexcept {
  const std::lock_guard lock(mutex_);
  stats_.current_bytes -= block.bytes;
  stats_.current_by_kind[static_cast<size_t>(block.kind)] -= block.bytes;
  if (block.bytes >= kLargeBlock) {
    arena_.deallocate(block.data, block.bytes);
  } else {
    bins_[static_cast<size_t>(bin_of(block.bytes))].push_back(block.data);
    small_cached_ += block.bytes;
  }
}

MemoryStats CachingAllocator::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void CachingAllocator::reset_peak() {
  const std::lock_guard lock(mutex_);
  stats_.peak_bytes = stats_.current_bytes;
  stats_.peak_by_kind = stats_.current_by_kind;
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
  arena_.release();
  stats_.reserved_bytes = small_reserved_ + arena_.resident_bytes();
}

}  // namespace tapestry
