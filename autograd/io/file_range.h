// Where the bytes of a tensor lie in a file.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace tapestry {

/// Bytes [first, first + bytes) of a tensor, which lie together in a file, from `begin` on.
struct FileRange {
  uint64_t first = 0;
  uint64_t begin = 0;
  uint64_t bytes = 0;
};

/// A tensor's ranges in the order of its bytes, without holes.
using FileRanges = std::vector<FileRange>;

/// Calls visit(place in the file, offset, count) for what lies together of bytes [offset, offset +
/// bytes) of the tensor.
template <class Visit>
void for_each_range(std::span<const FileRange> ranges,
                    uint64_t offset,
                    uint64_t bytes,
                    Visit&& visit) {
  auto range = std::upper_bound(ranges.begin(), ranges.end(), offset,
                                [](uint64_t at, const FileRange& r) { return at < r.first; });
  for (--range; bytes > 0; ++range) {
    const uint64_t within = offset - range->first;
    const uint64_t count = std::min(bytes, range->bytes - within);
    if (count > 0) {
      visit(range->begin + within, offset, count);
    }
    offset += count;
    bytes -= count;
  }
}

}  // namespace tapestry
