#include "autograd/kernels/bias_activation.h"

#include <cassert>
#include <cstring>

#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/kernels/machine/scratch.h"

namespace tapestry::kernels {

// The loops take the bias in the type computed in.
TAPESTRY_DECLARE_PER_ISA(
    void bias_activation_rows(const BiasActivationForward& call, int64_t begin, int64_t end);
    void bias_activation_backward_rows(
        const BiasActivationBackward& call, int64_t begin, int64_t end, void* dbias))

void bias_activation(const BiasActivationForward& wanted) {
  assert(compute_dtype(wanted.dtype) == compute_dtype(wanted.bias_dtype));
  const ComputeView bias(wanted.bias_dtype, wanted.n, wanted.bias);
  BiasActivationForward call = wanted;
  call.bias = bias.get();
  const auto run = TAPESTRY_DISPATCH(bias_activation_rows);
  parallel_for(call.rows, rows_per_thread(call.n),
               [&](int64_t begin, int64_t end) { run(call, begin, end); });
}

void bias_activation_backward(const BiasActivationBackward& wanted) {
  assert(compute_dtype(wanted.dtype) == compute_dtype(wanted.bias_dtype));
  const ComputeView bias(wanted.bias_dtype, wanted.n, wanted.bias);
  BiasActivationBackward call = wanted;
  call.bias = bias.get();
  const int64_t rows = call.rows;
  const auto run = TAPESTRY_DISPATCH(bias_activation_backward_rows);
  if (call.dbias.out == nullptr) {
    parallel_for(rows, rows_per_thread(call.n),
                 [&](int64_t begin, int64_t end) { run(call, begin, end, nullptr); });
    return;
  }
  if (call.dbias.exact) {
    ExactColumns dbias(call.dbias, call.n, true);
    parallel_for(rows, rows_per_thread(call.n), [&](int64_t begin, int64_t end) {
      ExactColumnsPart dbiases(dbias);
      for (int64_t row = begin; row < end; ++row) {
        run(call, row, row + 1, dbiases.next_row());
        dbiases.add_row();
      }
    });
    return;
  }
  const int64_t blocks = row_blocks(rows);
  const int64_t row_bytes = call.n * size_of(compute_dtype(call.dtype));
  const Scratch partial(blocks * row_bytes);
  const int64_t grain =
      std::max<int64_t>(rows_per_thread(call.n) * blocks / std::max<int64_t>(rows, 1), 1);
  parallel_for(blocks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      char* sums = static_cast<char*>(partial.get()) + block * row_bytes;
      std::memset(sums, 0, static_cast<size_t>(row_bytes));
      run(call, rows * block / blocks, rows * (block + 1) / blocks, sums);
    }
  });
  combine_blocks(compute_dtype(call.dtype), blocks, call.n, partial.get(), call.dbias);
}

}  // namespace tapestry::kernels
