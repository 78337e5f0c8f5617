#include "autograd/tensor/storage.h"

#include <utility>

#include "autograd/tensor/rank_context.h"

namespace tapestry {

Storage::Storage(int64_t bytes) : bytes_(bytes) {
  RankContext& context = RankContext::current();
  allocator_ = Ref<CachingAllocator>(&context.allocator());
  block_ = allocator_->allocate(bytes, thread_state().memory_kind);
  data_ = static_cast<std::byte*>(block_.data);
}

Storage::Storage(void* data, int64_t bytes, std::function<void()> release)
    : data_(static_cast<std::byte*>(data)), bytes_(bytes), release_(std::move(release)) {}

Storage::Storage(int64_t bytes, std::function<std::byte*()> open)
    : bytes_(bytes), open_(std::move(open)) {}

std::byte* Storage::opened() const {
  data_ = open_();
  return data_;
}

Ref<VersionWatch> Storage::watch_version() {
  VersionWatch* watch = watch_.load(std::memory_order_acquire);
  if (watch == nullptr) {
    auto made = make_ref<VersionWatch>(version());
    if (watch_.compare_exchange_strong(watch, made.get(), std::memory_order_acq_rel)) {
      watch_owner_ = made;
      return made;
    }
  }
  return Ref<VersionWatch>(watch);
}

Storage::~Storage() {
  if (allocator_) {
    allocator_->deallocate(block_);
  } else if (release_) {
    release_();
  }
}

}  // namespace tapestry
