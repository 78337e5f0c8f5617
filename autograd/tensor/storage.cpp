#include "autograd/tensor/storage.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"

namespace tapestry {

Storage::Storage(int64_t bytes) : bytes_(bytes) {
  RankContext& context = RankContext::current();
  allocator_ = Ref<CachingAllocator>(&context.allocator());
  block_ = allocator_->allocate(bytes, thread_state().memory_kind);
  data_ = static_cast<std::byte*>(block_.data);
  if (void* list = thread_state().new_storages) [[unlikely]] {
    static_cast<std::vector<Storage*>*>(list)->push_back(this);
  }
}

Storage::Storage(void* data, int64_t bytes, std::function<void()> release)
    : data_(static_cast<std::byte*>(data)), bytes_(bytes), release_(std::move(release)) {}

Storage::Storage(int64_t bytes, std::function<std::byte*()> open)
    : bytes_(bytes), open_(std::move(open)) {}

std::byte* Storage::opened() const {
  if (source_) {
    const Ref<StorageSource> source = source_;
    source->restore(const_cast<Storage&>(*this));
    check<RuntimeError>(data_ != nullptr, "storage: ", bytes_,
                        " bytes were let go and are not made again by what made them");
    return data_;
  }
  if (data_ == nullptr) {
    data_ = open_();
  }
  if (auto* scope = static_cast<LeaseScope*>(thread_state().leases)) {
    const Ref<Storage> own(const_cast<Storage*>(this));  // to count, not to change
    if (std::find(scope->windows_.begin(), scope->windows_.end(), own) == scope->windows_.end()) {
      scope->windows_.push_back(own);
      leases_.fetch_add(1, std::memory_order_relaxed);
    }
  }
  return data_;
}

void LeaseScope::release() noexcept {
  for (const Ref<Storage>& window : windows_) {
    window->leases_.fetch_sub(1, std::memory_order_relaxed);
  }
}

void Storage::set_source(Ref<StorageSource> source) {
  if (allocator_ && bytes_ > 0 && data_ != nullptr) {
    clear_source();
    source_ = std::move(source);
  }
}

void Storage::clear_source() {
  if (source_ && data_ != nullptr) {
    const Ref<StorageSource> source = std::exchange(source_, nullptr);
    source->forget(*this);
  }
}

bool Storage::drop() {
  if (!source_ || data_ == nullptr) {
    return false;
  }
  allocator_->deallocate(std::exchange(block_, {}));
  data_ = nullptr;
  open_ = [] { return static_cast<std::byte*>(nullptr); };  // sends data() to opened()
  return true;
}

void Storage::refill(Storage& other) {
  if (!is_dropped()) {
    return;
  }
  check<ValueError>(other.owns_memory() && other.data_ != nullptr && other.bytes_ == bytes_,
                    "storage: ", bytes_, " bytes cannot be filled from ", other.bytes_);
  other.clear_source();
  allocator_ = std::exchange(other.allocator_, nullptr);
  block_ = std::exchange(other.block_, {});
  data_ = std::exchange(other.data_, nullptr);
  open_ = nullptr;
  clear_source();
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
  if (source_) {
    source_->forget(*this);
  }
  if (allocator_) {
    if (data_ != nullptr) {
      allocator_->deallocate(block_);
    }
  } else if (release_) {
    release_();
  }
}

}  // namespace tapestry
