// The one OpenMP loop of the library, and the size of its team.
#pragma once

#include <algorithm>
#include <cstdint>

#ifdef _OPENMP
#include <omp.h>

#include <atomic>
#include <exception>

#include "autograd/kernels/team_state.h"
#endif

namespace tapestry {

/// Threads that loops started by the calling thread use. A thread rank has a team of one.
int num_threads();

/// Sets the team size for loops and matrix products started by the calling thread.
void set_num_threads(int count);

namespace kernels {

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
#ifdef _OPENMP
  const int64_t parts = omp_in_parallel() != 0
                            ? 1
                            : std::min<int64_t>(num_threads(), n / std::max<int64_t>(grain, 1));
  if (parts > 1) {
    const TeamState state = team_state();
    std::atomic<bool> failed = false;
    std::exception_ptr failure;
#pragma omp parallel num_threads(static_cast <int>(parts))
    {
      const TeamStateGuard inherited(state);
      const int64_t team = omp_get_num_threads();
      const int64_t rank = omp_get_thread_num();
      try {  // an exception must not leave the region
        body(n * rank / team, n * (rank + 1) / team);
      } catch (...) {
        if (!failed.exchange(true)) {
          failure = std::current_exception();
        }
      }
    }
    if (failure) [[unlikely]] {
      std::rethrow_exception(failure);
    }
    return;
  }
#else
  (void)grain;
#endif
  if (n > 0) {
    body(int64_t{0}, n);
  }
}

}  // namespace kernels
}  // namespace tapestry
