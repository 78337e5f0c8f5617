#include "autograd/kernels/swiglu.h"

#include <cassert>

#include "autograd/kernels/cpu.h"
#include "autograd/kernels/parallel_for.h"

namespace tapestry::kernels {

TAPESTRY_DECLARE_PER_ISA(void swiglu_rows(DType dtype,
                                          int64_t begin,
                                          int64_t end,
                                          int64_t n,
                                          const void* gate,
                                          int64_t gate_stride,
                                          const void* up,
                                          int64_t up_stride,
                                          void* y))
TAPESTRY_DECLARE_PER_ISA(void swiglu_backward_rows(DType dtype,
                                                   int64_t begin,
                                                   int64_t end,
                                                   int64_t n,
                                                   const void* gate,
                                                   int64_t gate_stride,
                                                   const void* up,
                                                   int64_t up_stride,
                                                   const void* dy,
                                                   void* dgate,
                                                   int64_t dgate_stride,
                                                   void* dup,
                                                   int64_t dup_stride))

namespace {

int64_t rows_per_thread(int64_t n) {
  return std::max<int64_t>(kGrainSize / 4 / std::max<int64_t>(n, 1), 1);
}

}  // namespace

void swiglu(DType dtype,
            int64_t rows,
            int64_t n,
            const void* gate,
            int64_t gate_row_stride,
            const void* up,
            int64_t up_row_stride,
            void* y) {
  assert(is_floating(dtype));
  const auto run = TAPESTRY_DISPATCH(swiglu_rows);
  parallel_for(rows, rows_per_thread(n), [&](int64_t begin, int64_t end) {
    run(dtype, begin, end, n, gate, gate_row_stride, up, up_row_stride, y);
  });
}

void swiglu_backward(DType dtype,
                     int64_t rows,
                     int64_t n,
                     const void* gate,
                     int64_t gate_row_stride,
                     const void* up,
                     int64_t up_row_stride,
                     const void* dy,
                     void* dgate,
                     int64_t dgate_row_stride,
                     void* dup,
                     int64_t dup_row_stride) {
  assert(is_floating(dtype));
  const auto run = TAPESTRY_DISPATCH(swiglu_backward_rows);
  parallel_for(rows, rows_per_thread(n), [&](int64_t begin, int64_t end) {
    run(dtype, begin, end, n, gate, gate_row_stride, up, up_row_stride, dy, dgate, dgate_row_stride,
        dup, dup_row_stride);
  });
}

}  // namespace tapestry::kernels
