// Whole blocks of memory, worked on by all threads of a team.
#pragma once

#include <cstdint>

namespace tapestry::kernels {

/// Pages in [memory, memory + bytes), which nobody has written yet: its content is undefined before
/// and after. Each thread does the part that parallel_for gives it in loops over the same memory,
/// so that on a machine of several NUMA nodes pages lie where they are used, and the system clears
/// them by as many threads as there are. Nothing with a team of one, whose pages come as they are
/// used.
void first_touch(void* memory, int64_t bytes);

/// Sets `bytes` bytes to 0.
void clear(void* memory, int64_t bytes);

}  // namespace tapestry::kernels
