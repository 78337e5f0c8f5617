#include "autograd/kernels/bias_activation.h"

#include <cassert>
#include <cstring>

#include "autograd/kernels/parallel_for.h"
#include "autograd/kernels/scratch.h"

namespace tapestry::kernels {

TAPESTRY_DECLARE_PER_ISA(void bias_activation_rows(Activation f,
                                                   DType dtype,
                                                   int64_t begin,
                                                   int64_t end,
                                                   int64_t n,
                                                   const void* x,
                                                   const void* bias,
                                                   void* y);
                         void bias_activation_backward_rows(Activation f,
                                                            DType dtype,
                                                            int64_t begin,
                                                            int64_t end,
                                                            int64_t n,
                                                            const void* dy,
                                                            const void* x,
                                                            const void* bias,
                                                            void* dx,
                                                            void* dbias))

namespace {

int64_t rows_per_thread(int64_t n) {
  return std::max<int64_t>(kGrainSize / 4 / std::max<int64_t>(n, 1), 1);
}

}  // namespace

void bias_activation(Activation f,
                     DType dtype,
                     DType bias_dtype,
                     int64_t rows,
                     int64_t n,
                     const void* x,
                     const void* bias,
                     void* y) {
  assert(compute_dtype(dtype) == compute_dtype(bias_dtype));
  const ComputeView b(bias_dtype, n, bias);
  const auto run = TAPESTRY_DISPATCH(bias_activation_rows);
  parallel_for(rows, rows_per_thread(n),
               [&](int64_t begin, int64_t end) { run(f, dtype, begin, end, n, x, b.get(), y); });
}

void bias_activation_backward(Activation f,
                              DType dtype,
                              DType bias_dtype,
                              int64_t rows,
                              int64_t n,
                              const void* dy,
                              const void* x,
                              const void* bias,
                              void* dx,
                              const ColumnSums& dbias) {
  assert(compute_dtype(dtype) == compute_dtype(bias_dtype));
  const ComputeView b(bias_dtype, n, bias);
  const auto run = TAPESTRY_DISPATCH(bias_activation_backward_rows);
  if (dbias.out == nullptr) {
    parallel_for(rows, rows_per_thread(n), [&](int64_t begin, int64_t end) {
      run(f, dtype, begin, end, n, dy, x, b.get(), dx, nullptr);
    });
    return;
  }
  const int64_t blocks = row_blocks(rows);
  const int64_t row_bytes = n * size_of(compute_dtype(dtype));
  const Scratch partial(blocks * row_bytes);
  const int64_t grain =
      std::max<int64_t>(rows_per_thread(n) * blocks / std::max<int64_t>(rows, 1), 1);
  parallel_for(blocks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      char* sums = static_cast<char*>(partial.get()) + block * row_bytes;
      std::memset(sums, 0, static_cast<size_t>(row_bytes));
      run(f, dtype, rows * block / blocks, rows * (block + 1) / blocks, n, dy, x, b.get(), dx,
          sums);
    }
  });
  combine_blocks(compute_dtype(dtype), blocks, n, partial.get(), dbias);
}

}  // namespace tapestry::kernels
