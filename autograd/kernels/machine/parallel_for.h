// The one parallel loop of the library.
#pragma once

#include <algorithm>
#include <cstdint>

#include "autograd/kernels/machine/team.h"

namespace tapestry::kernels {

/// Elements of light element-wise work below which a team costs more than it gains.
inline constexpr int64_t kGrainSize = 16384;

/// The same in rows of n elements each of which costs several operations.
inline int64_t rows_per_thread(int64_t n) {
  return std::max<int64_t>(kGrainSize / 4 / std::max<int64_t>(n, 1), 1);
}

/// Calls body(begin, end) on a partition of [0, n) into contiguous parts of at least `grain`
/// indices. The partition depends only on n, grain and the team size, so results repeat.
/// Nested calls run inline. What the body throws in any thread is thrown to the caller when all
/// parts have ended: of several exceptions, one. Threads inherit the caller's TeamState.
template <class Body>
void parallel_for(int64_t n, int64_t grain, const Body& body) {
  const int64_t parts =
      in_team() ? 1 : std::min<int64_t>(num_threads(), n / std::max<int64_t>(grain, 1));
  if (parts > 1) {
    struct Loop {
      const Body* body;
      int64_t n;
      int64_t parts;
    };
    const Loop loop = {&body, n, parts};
    const auto run = [](const void* context, int part) {
      const auto& [run_body, size, count] = *static_cast<const Loop*>(context);
      (*run_body)(size * part / count, size * (part + 1) / count);
    };
    run_parts(static_cast<int>(parts), run, &loop);
    return;
  }
  if (n > 0) {
    body(int64_t{0}, n);
  }
}

}  // namespace tapestry::kernels
