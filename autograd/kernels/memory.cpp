#include "autograd/kernels/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>

#include "autograd/kernels/machine/parallel_for.h"

namespace tapestry::kernels {

namespace {

constexpr int64_t kCacheLine = 64;  // threads that write to one line wait for each other

// Pages in whole pages. Kernels before 5.14 cannot be asked for that: there each page is written
// to.
void page_in(std::byte* begin, int64_t bytes, int64_t page) {
#ifdef MADV_POPULATE_WRITE
  if (madvise(begin, static_cast<size_t>(bytes), MADV_POPULATE_WRITE) == 0) {
    return;
  }
#endif
  for (int64_t at = 0; at < bytes; at += page) {
    *static_cast<volatile std::byte*>(begin + at) = std::byte{0};
  }
}

}  // namespace

void first_touch(void* memory, int64_t bytes) {
  static const int64_t page = sysconf(_SC_PAGESIZE);
  auto* const base = static_cast<std::byte*>(memory);
  const auto address = reinterpret_cast<uintptr_t>(memory);
  const auto unaligned = static_cast<int64_t>(address % static_cast<uintptr_t>(page));
  const int64_t skipped = unaligned == 0 ? 0 : page - unaligned;
  const int64_t pages = (bytes - skipped) / page;
  parallel_for(pages, 1, [&](int64_t begin, int64_t end) {
    if (end - begin < pages) {
      page_in(base + skipped + begin * page, (end - begin) * page, page);
    }
  });
}

void clear(void* memory, int64_t bytes) {
  auto* const base = static_cast<std::byte*>(memory);
  const int64_t lines = (bytes + kCacheLine - 1) / kCacheLine;
  parallel_for(lines, kGrainSize / kCacheLine, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kCacheLine;
    const int64_t last = end == lines ? bytes : end * kCacheLine;
    std::memset(base + first, 0, static_cast<size_t>(last - first));
  });
}

}  // namespace tapestry::kernels
