// Memory that tensors share: a block of the caching allocator, or memory owned by somebody else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "autograd/tensor/allocator.h"
#include "autograd/tensor/ref.h"

namespace tapestry {

/// One contiguous piece of memory with the version counter of everything that views it. Each
/// in-place change adds one to the version; a tensor that was saved for backward remembers the
/// version it saw.
class Storage final : public RefCounted {
 public:
  /// Allocates from the current rank's allocator; the content is undefined.
  explicit Storage(int64_t bytes);
  /// Wraps memory that lives elsewhere; `release` is called when the last tensor is gone.
  Storage(void* data, int64_t bytes, std::function<void()> release);
  ~Storage() override;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  uint32_t version() const { return version_; }
  void bump_version() { ++version_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  uint32_t version_ = 0;
  Ref<CachingAllocator> allocator_;
  CachingAllocator::Block block_;
  std::function<void()> release_;
};

}  // namespace tapestry
