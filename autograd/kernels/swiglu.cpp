#include "autograd/kernels/swiglu.h"

#include <cassert>

#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/parallel_for.h"

namespace tapestry::kernels {

TAPESTRY_DECLARE_PER_ISA(void swiglu_rows(const SwigluForward& call, int64_t begin, int64_t end);
                         void swiglu_backward_rows(const SwigluBackward& call,
                                                   int64_t begin,
                                                   int64_t end))

void swiglu(const SwigluForward& call) {
  assert(is_floating(call.dtype));
  const auto run = TAPESTRY_DISPATCH(swiglu_rows);
  parallel_for(call.rows, rows_per_thread(call.n),
               [&](int64_t begin, int64_t end) { run(call, begin, end); });
}

void swiglu_backward(const SwigluBackward& call) {
  assert(is_floating(call.dtype));
  const auto run = TAPESTRY_DISPATCH(swiglu_backward_rows);
  parallel_for(call.rows, rows_per_thread(call.n),
               [&](int64_t begin, int64_t end) { run(call, begin, end); });
}

}  // namespace tapestry::kernels
