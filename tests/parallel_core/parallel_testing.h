// Tests on several ranks, which are threads of the test program.
#pragma once

#include <functional>
#include <memory>

#include "parallel_core/comm/thread_ranks.h"
#include "parallel_core/parallel_state.h"

namespace tapestry::testing {

/// Seconds after which a rank of a test gives up on the others, also on a slow machine.
inline constexpr double kTestTimeout = 120;

/// Runs `body` on each of `world_size` ranks, with the groups of `sizes` made. What a rank throws
/// is thrown here. Assertions may be made on every rank; variables that ranks share must not be
/// written by more than one of them.
inline void run_parallel(int world_size,
                         const ModelParallelSizes& sizes,
                         const std::function<void()>& body) {
  run_thread_ranks(world_size,
                   [&](const std::shared_ptr<ProcessGroup>& world) {
                     initialize_model_parallel(sizes, world);
                     body();
                     destroy_model_parallel();
                   },
                   {.timeout_seconds = kTestTimeout});
}

}  // namespace tapestry::testing
