// What memory the machine has left for this process.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tapestry {

/// Bytes that a process could still use: the kernel's MemAvailable, and less where a control group
/// (version 1 or 2) sets a limit. `root` is the file system's root, another one in tests. A huge
/// number if nothing can be read.
int64_t available_memory(const std::string& root = "/");

/// What the kernel charges this process: pages in memory, with those of programs and libraries that
/// it has touched and of memory that it shares. 0 where nothing can be read.
struct ProcessMemory {
  int64_t current_bytes = 0;
  int64_t peak_bytes = 0;  ///< since it began
};
ProcessMemory process_memory(const std::string& root = "/");

/// RuntimeError, naming `what` and the size, if `bytes` are more than a process could still use:
/// for memory that is not an allocator's.
void check_available(std::string_view what, int64_t bytes);

}  // namespace tapestry
