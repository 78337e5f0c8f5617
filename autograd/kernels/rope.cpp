#include "autograd/kernels/rope.h"

#include <cassert>

#include "autograd/kernels/cpu.h"
#include "autograd/kernels/parallel_for.h"

namespace tapestry::kernels {

TAPESTRY_DECLARE_PER_ISA(void rope_rows(DType dtype,
                                        int64_t begin,
                                        int64_t end,
                                        int64_t heads,
                                        int64_t seq,
                                        int64_t head_dim,
                                        int64_t rotary_dim,
                                        bool interleaved,
                                        const void* x,
                                        RopeStrides x_strides,
                                        const void* cos,
                                        const void* sin,
                                        bool inverse,
                                        void* y,
                                        RopeStrides y_strides))

void rope(DType dtype,
          int64_t batch,
          int64_t heads,
          int64_t seq,
          int64_t head_dim,
          int64_t rotary_dim,
          bool interleaved,
          const void* x,
          RopeStrides x_strides,
          const void* cos,
          const void* sin,
          bool inverse,
          void* y,
          RopeStrides y_strides) {
  assert(is_floating(dtype) && rotary_dim % 2 == 0 && rotary_dim <= head_dim);
  const auto run = TAPESTRY_DISPATCH(rope_rows);
  const int64_t grain = std::max<int64_t>(kGrainSize / std::max<int64_t>(head_dim, 1), 1);
  parallel_for(batch * seq * heads, grain, [&](int64_t begin, int64_t end) {
    run(dtype, begin, end, heads, seq, head_dim, rotary_dim, interleaved, x, x_strides, cos, sin,
        inverse, y, y_strides);
  });
}

}  // namespace tapestry::kernels
