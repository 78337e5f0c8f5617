#include "autograd/kernels/attention/rope.h"

#include <cassert>

#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/parallel_for.h"

namespace tapestry::kernels {

TAPESTRY_DECLARE_PER_ISA(void rope_rows(const RopeCall& call, int64_t begin, int64_t end))

void rope(const RopeCall& call) {
  assert(is_floating(call.dtype) && call.rotary_dim % 2 == 0 && call.rotary_dim <= call.head_dim);
  const auto run = TAPESTRY_DISPATCH(rope_rows);
  const int64_t grain = std::max<int64_t>(kGrainSize / std::max<int64_t>(call.head_dim, 1), 1);
  parallel_for(call.batch * call.seq * call.heads, grain,
               [&](int64_t begin, int64_t end) { run(call, begin, end); });
}

}  // namespace tapestry::kernels
