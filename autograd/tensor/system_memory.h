// What memory the machine has left for this process.
#pragma once

#include <cstdint>
#include <string>

namespace tapestry {

/// Bytes that a process could still use: the kernel's MemAvailable, and less where a control group
/// (version 1 or 2) sets a limit. `root` is the file system's root, another one in tests. A huge
/// number if nothing can be read.
int64_t available_memory(const std::string& root = "/");

}  // namespace tapestry
