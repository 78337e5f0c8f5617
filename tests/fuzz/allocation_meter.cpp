#include "tests/fuzz/allocation_meter.h"

#include <malloc.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace tapestry::fuzz {

namespace {

struct Count {
  bool on = false;
  int64_t held = 0;
  int64_t peak = 0;
  int64_t limit = 0;
};
thread_local Count count;

}  // namespace

AllocationMeter::AllocationMeter(size_t limit) {
  count = {.on = true, .held = 0, .peak = 0, .limit = static_cast<int64_t>(limit)};
}

AllocationMeter::~AllocationMeter() { count.on = false; }

size_t AllocationMeter::peak() const { return static_cast<size_t>(count.peak); }

bool AllocationMeter::exceeded() const { return count.peak > count.limit; }

static void* allocate(size_t bytes, size_t alignment) {
  if (count.on) {
    // Requests near 2^64 must not become negative.
    const auto wanted = static_cast<int64_t>(std::min(bytes, size_t{1} << 60U));
    count.peak = std::max(count.peak, count.held + wanted);
    if (count.held + wanted > count.limit) {
      throw std::bad_alloc();
    }
  }
  void* memory = alignment == 0 ? std::malloc(std::max<size_t>(bytes, 1))
                                : std::aligned_alloc(
                                      alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  if (count.on) {
    count.held += static_cast<int64_t>(::malloc_usable_size(memory));
  }
  return memory;
}

static void* allocate_or_null(size_t bytes) noexcept {
  try {
    return allocate(bytes, 0);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

static void release(void* memory) noexcept {
  if (count.on && memory != nullptr) {
    count.held -= static_cast<int64_t>(::malloc_usable_size(memory));
  }
  std::free(memory);
}

}  // namespace tapestry::fuzz

using tapestry::fuzz::allocate;
using tapestry::fuzz::allocate_or_null;
using tapestry::fuzz::release;

// All forms: sanitizers bring their own of those that are left out.
void* operator new(size_t bytes) { return allocate(bytes, 0); }
void* operator new[](size_t bytes) { return allocate(bytes, 0); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<size_t>(alignment));
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<size_t>(alignment));
}
void* operator new(size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  return allocate_or_null(bytes);
}
void* operator new[](size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  return allocate_or_null(bytes);
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, size_t /*bytes*/) noexcept { release(memory); }
void operator delete[](void* memory, size_t /*bytes*/) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t /*alignment*/) noexcept { release(memory); }
void operator delete[](void* memory, std::align_val_t /*alignment*/) noexcept { release(memory); }
void operator delete(void* memory, size_t /*bytes*/, std::align_val_t /*alignment*/) noexcept {
  release(memory);
}
void operator delete[](void* memory, size_t /*bytes*/, std::align_val_t /*alignment*/) noexcept {
  release(memory);
}
void operator delete(void* memory, const std::nothrow_t& /*tag*/) noexcept { release(memory); }
void operator delete[](void* memory, const std::nothrow_t& /*tag*/) noexcept { release(memory); }
