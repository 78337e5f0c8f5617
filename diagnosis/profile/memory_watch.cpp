#include "diagnosis/profile/memory_watch.h"

#include <utility>

#include "autograd/tensor/error.h"

namespace tapestry::profile {

namespace {

constexpr std::string_view kBefore = "before the profile";

}  // namespace

MemoryWatch::MemoryWatch(Ref<CachingAllocator> allocator) : allocator_(std::move(allocator)) {
  const MemoryStats stats = allocator_->stats();
  for (int k = 0; k < kNumMemoryKinds; ++k) {
    const auto kind = static_cast<MemoryKind>(k);
    holders_[holder_named({}, std::string(kBefore), kind)].now.bytes =
        stats.current_by_kind[static_cast<size_t>(k)];
  }
  is_at_peak_ = true;
  allocator_->set_observer(this);
}

MemoryWatch::~MemoryWatch() { allocator_->set_observer(nullptr); }

size_t MemoryWatch::holder_named(std::string_view module, std::string op, MemoryKind kind) {
  std::string key = concat(module, "\n", op, "\n", static_cast<int>(kind));
  const auto [entry, added] = by_name_.emplace(std::move(key), holders_.size());
  if (added) {
    holders_.push_back({.now = {.module = std::string(module), .op = std::move(op), .kind = kind}});
  }
  return entry->second;
}

size_t MemoryWatch::holder_of(const BlockOwner& owner) {
  if (const auto found = by_owner_.find(owner); found != by_owner_.end()) {
    return found->second;
  }
  const size_t holder = holder_named(owner.module, op_text(owner), owner.kind);
  by_owner_.emplace(owner, holder);
  return holder;
}

// What is held at the peak is looked at when the first of it goes.
void MemoryWatch::keep_peak() {
  if (!std::exchange(is_at_peak_, false)) {
    return;
  }
  for (Holder& holder : holders_) {
    holder.peak_bytes = holder.now.bytes;
    holder.peak_blocks = holder.now.blocks;
  }
  made_at_peak_ = blocks_made_;
}

void MemoryWatch::note_point(int64_t current) {
  if (notes_points_) {
    points_.push_back({now_ns(), current});
  }
}

void MemoryWatch::allocated(
    const void* data, int64_t bytes, const BlockOwner& owner, int64_t current, bool at_peak) {
  const std::lock_guard lock(mutex_);
  if (!at_peak) {
    keep_peak();
  }
  const size_t index = holder_of(owner);
  Holder& holder = holders_[index];
  holder.now.bytes += bytes;
  ++holder.now.blocks;
  blocks_.insert_or_assign(data, Block{index, bytes, ++blocks_made_});
  is_at_peak_ = at_peak;
  note_point(current);
}

void MemoryWatch::deallocated(const void* data,
                              int64_t bytes,
                              MemoryKind kind,
                              int64_t current) noexcept {
  const std::lock_guard lock(mutex_);
  keep_peak();
  const auto found = blocks_.find(data);
  // The first holders are the kinds of what was there before.
  const size_t index = found == blocks_.end() ? static_cast<size_t>(kind) : found->second.holder;
  holders_[index].now.bytes -= bytes;
  if (found != blocks_.end()) {
    --holders_[index].now.blocks;
    blocks_.erase(found);
  }
  note_point(current);
}

void MemoryWatch::peak_was_reset() {
  const std::lock_guard lock(mutex_);
  is_at_peak_ = true;
}

void MemoryWatch::label(const void* data, std::string_view module, std::string_view op) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(data);
  if (found == blocks_.end()) {
    return;
  }
  Block& block = found->second;
  const size_t to = holder_named(module, std::string(op), holders_[block.holder].now.kind);
  Holder& from = holders_[block.holder];
  Holder& into = holders_[to];
  if (&from == &into) {
    return;
  }
  from.now.bytes -= block.bytes;
  --from.now.blocks;
  into.now.bytes += block.bytes;
  ++into.now.blocks;
  if (!is_at_peak_ && block.number <= made_at_peak_) {
    from.peak_bytes -= block.bytes;
    --from.peak_blocks;
    into.peak_bytes += block.bytes;
    ++into.peak_blocks;
  }
  block.holder = to;
}

HeldAtPeak MemoryWatch::at_peak() const {
  const std::lock_guard lock(mutex_);
  HeldAtPeak out;
  for (const Holder& holder : holders_) {
    HeldMemory held = holder.now;
    if (!is_at_peak_) {
      held.bytes = holder.peak_bytes;
      held.blocks = holder.peak_blocks;
    }
    if (held.bytes != 0) {
      out.bytes += held.bytes;
      out.held.push_back(std::move(held));
    }
  }
  sort_by_size(out.held);
  return out;
}

std::vector<HeldMemory> MemoryWatch::held() const {
  const std::lock_guard lock(mutex_);
  std::vector<HeldMemory> out;
  for (const Holder& holder : holders_) {
    if (holder.now.bytes != 0) {
      out.push_back(holder.now);
    }
  }
  return out;
}

void MemoryWatch::start_points() {
  const std::lock_guard lock(mutex_);
  notes_points_ = true;
  points_.clear();
}

std::vector<MemoryPoint> MemoryWatch::take_points() {
  const std::lock_guard lock(mutex_);
  notes_points_ = false;
  return std::exchange(points_, {});
}

}  // namespace tapestry::profile
