// Which pages of a process are in memory, for tests of what pages them in.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <vector>

namespace tapestry {

/// One flag for each page from `begin`, which is one's beginning.
inline std::vector<bool> pages_present(void* begin, size_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> flags((bytes + page - 1) / page);
  EXPECT_EQ(mincore(begin, bytes, flags.data()), 0);
  std::vector<bool> present;
  present.reserve(flags.size());
  for (const unsigned char flag : flags) {
    present.push_back((flag & 1U) != 0);
  }
  return present;
}

/// Whether the system says that it has paged in what it has not, as emulators of user programs do.
inline bool system_ignores_paging_requests() {
#ifdef MADV_POPULATE_WRITE
  const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* page = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const bool ignored =
      madvise(page, bytes, MADV_POPULATE_WRITE) == 0 && !pages_present(page, bytes).front();
  munmap(page, bytes);
  return ignored;
#else
  return false;
#endif
}

}  // namespace tapestry
