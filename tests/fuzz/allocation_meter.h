// Counts what operator new hands out, and refuses what is too much.
#pragma once

#include <cstddef>

namespace tapestry::fuzz {

/// While it lives, the thread may hold so many bytes more than at its start; a request beyond that
/// gets std::bad_alloc. One at a time in a thread.
class AllocationMeter {
 public:
  explicit AllocationMeter(size_t limit);
  AllocationMeter(const AllocationMeter&) = delete;
  AllocationMeter& operator=(const AllocationMeter&) = delete;
  ~AllocationMeter();

  /// The largest number of bytes that were held, or asked for.
  size_t peak() const;
  bool exceeded() const;
};

}  // namespace tapestry::fuzz
