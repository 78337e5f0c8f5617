// Memory that tensors share: a block of the caching allocator, memory owned by somebody else, or a
// window on memory that comes when it is touched. A block may be let go for a while, if its content
// can be made again.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "autograd/tensor/allocator.h"
#include "autograd/tensor/ref.h"
#include "autograd/tensor/thread_state.h"

namespace tapestry {

/// The version of a storage for who must learn of changes but does not keep the memory.
class VersionWatch final : public RefCounted {
 public:
  explicit VersionWatch(uint32_t version) : version_(version) {}
  /// That of the storage; after its end, the last one.
  uint32_t version() const { return version_.load(std::memory_order_relaxed); }

 private:
  friend class Storage;
  std::atomic<uint32_t> version_;
};

class Storage;

/// While an op runs, forward or backward: it leases the windows that it touches, whose memory its
/// addresses then point into, until it is done. Those of ops that it calls have scopes of their
/// own.
class LeaseScope {
 public:
  LeaseScope() : outer_(thread_state().leases) { thread_state().leases = this; }
  LeaseScope(const LeaseScope&) = delete;
  LeaseScope& operator=(const LeaseScope&) = delete;
  ~LeaseScope() {
    thread_state().leases = outer_;
    if (!windows_.empty()) [[unlikely]] {
      release();
    }
  }

 private:
  friend class Storage;
  void release() noexcept;

  void* outer_;
  std::vector<Ref<Storage>> windows_;
};

/// Makes the content of storages again whose memory was let go.
class StorageSource : public RefCounted {
 public:
  /// Gives `wanted`, and whoever else it can, memory and content back by Storage::refill().
  virtual void restore(Storage& wanted) = 0;
  /// A storage needs it no more.
  virtual void forget(const Storage& storage) = 0;
};

/// One contiguous piece of memory with the version counter of everything that views it. Each
/// in-place change adds one to the version; a tensor that was saved for backward remembers the
/// version it saw. Threads may change disjoint parts of one storage at the same time; a window is
/// opened and closed by one thread at a time.
class Storage final : public RefCounted {
 public:
  /// Allocates from the current rank's allocator; the content is undefined.
  explicit Storage(int64_t bytes);
  /// Wraps memory that lives elsewhere; `release` is called when the last tensor is gone.
  Storage(void* data, int64_t bytes, std::function<void()> release);
  /// A window on memory that is there only while it is used: the first data() after the making or
  /// after close() calls `open`, which fetches the memory (from other ranks, for example) and
  /// returns its address. What `open` throws, data() throws.
  Storage(int64_t bytes, std::function<std::byte*()> open);
  ~Storage() override;

  std::byte* data() const { return !open_ ? data_ : opened(); }
  /// Closes a window: the memory may go. Tensors on it keep their place and version.
  void close() { data_ = nullptr; }
  /// A window that an op is using (LeaseScope): it is not to be closed for another one's sake.
  bool is_leased() const { return leases_.load(std::memory_order_relaxed) > 0; }
  bool is_open() const { return data_ != nullptr; }

  /// Says where the content of memory of its own comes from, so that the memory may be dropped. The
  /// content must not be changed afterwards.
  void set_source(Ref<StorageSource> source);
  /// The content is to stay. Without effect where the memory was dropped.
  void clear_source();
  /// Lets the memory go, which the next data() has made again by the source. False, and nothing
  /// happens, without a source or memory.
  bool drop();
  bool is_dropped() const { return source_ && data_ == nullptr; }
  /// Gives it, if it was dropped, the memory of a storage of the same size, which is left without.
  void refill(Storage& other);

  int64_t bytes() const { return bytes_; }
  /// False for memory that lives elsewhere and for a window: somebody else may look at it.
  bool owns_memory() const { return static_cast<bool>(allocator_); }
  uint32_t version() const { return version_.load(std::memory_order_relaxed); }
  void bump_version() {
    version_.fetch_add(1, std::memory_order_relaxed);
    if (VersionWatch* watch = watch_.load(std::memory_order_acquire)) [[unlikely]] {
      watch->version_.fetch_add(1, std::memory_order_relaxed);
    }
  }
  /// Made when it is first asked for; threads may ask at the same time.
  Ref<VersionWatch> watch_version();

 private:
  friend class LeaseScope;
  std::byte* opened() const;

  mutable std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  std::atomic<uint32_t> version_{0};
  mutable std::atomic<int32_t> leases_{0};
  std::atomic<VersionWatch*> watch_{nullptr};
  Ref<VersionWatch> watch_owner_;  // of that pointer; set once
  Ref<CachingAllocator> allocator_;
  CachingAllocator::Block block_;
  std::function<void()> release_;
  std::function<std::byte*()> open_;
  Ref<StorageSource> source_;
};

}  // namespace tapestry
