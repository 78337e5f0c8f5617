#include "autograd/kernels/norm.h"

#include <cassert>
#include <cstring>

#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/kernels/machine/scratch.h"
#include "autograd/kernels/norm_rows.h"

namespace tapestry::kernels {

namespace {

[[maybe_unused]] bool dtypes_fit(const NormShape& s) {
  const bool wide = s.sum_dtype == kFloat64;
  const auto fits = [&](DType dtype) { return is_floating(dtype) && (dtype == kFloat64) == wide; };
  return is_floating(s.sum_dtype) && fits(s.normed_dtype) && fits(s.weight_dtype) &&
         fits(s.x_dtype) && fits(s.x_bias_dtype);
}

int64_t item_of(const NormShape& s) { return size_of(compute_dtype(s.sum_dtype)); }

Scratch row_buffers(const NormShape& s) { return Scratch(kNormRowBuffers * s.n * item_of(s)); }

using BackwardRows = void (*)(const NormBackward&, int64_t, int64_t, const NormSums&, void*);

/// With parameters' gradients of which some are exact sums: the share of a row is a term.
void exact_norm_backward(const NormBackward& rows, bool with_dweight, BackwardRows run) {
  const NormShape& s = rows.shape;
  assert(compute_dtype(s.sum_dtype) == kFloat32);
  ExactColumns dweight(rows.dweight, s.n, with_dweight);
  ExactColumns dbias(rows.dbias, s.n, false);
  ExactColumns dx_bias(rows.dx_bias, s.n, false);
  parallel_for(s.rows, rows_per_thread(s.n), [&](int64_t begin, int64_t end) {
    const Scratch buffers = row_buffers(s);
    ExactColumnsPart dweights(dweight);
    ExactColumnsPart dbiases(dbias);
    ExactColumnsPart dx_biases(dx_bias);
    for (int64_t row = begin; row < end; ++row) {
      run(rows, row, row + 1, {dweights.next_row(), dbiases.next_row(), dx_biases.next_row()},
          buffers.get());
      dweights.add_row();
      dbiases.add_row();
      dx_biases.add_row();
    }
  });
  dweight.finish();
  dbias.finish();
  dx_bias.finish();
}

}  // namespace

void norm_forward(const NormForward& call) {
  const NormShape& s = call.shape;
  assert(dtypes_fit(s) && call.rstd != nullptr && (!s.centered || call.mean != nullptr));
  const ComputeView weight(s.weight_dtype, s.n, call.weight);
  const ComputeView bias(s.weight_dtype, s.n, call.bias);
  const ComputeView x_bias(s.x_bias_dtype, s.n, call.x_bias);
  NormForward rows = call;
  rows.weight = weight.get();
  rows.bias = bias.get();
  rows.x_bias = x_bias.get();
  const auto run = TAPESTRY_DISPATCH(norm_forward_rows);
  parallel_for(s.rows, rows_per_thread(s.n), [&](int64_t begin, int64_t end) {
    const Scratch buffers = row_buffers(s);
    run(rows, begin, end, buffers.get());
  });
}

void norm_backward(const NormBackward& call) {
  const NormShape& s = call.shape;
  assert(dtypes_fit(s) && (!s.centered || call.mean != nullptr));
  const ComputeView weight(s.weight_dtype, s.n, call.weight);
  NormBackward rows = call;
  rows.weight = weight.get();
  const auto run = TAPESTRY_DISPATCH(norm_backward_rows);
  const bool with_dx_bias = call.dx_bias.out != nullptr;
  const bool with_dbias = call.dbias.out != nullptr;
  const bool with_dweight = call.dweight.out != nullptr || with_dbias;
  if (!with_dweight && !with_dx_bias) {
    parallel_for(s.rows, rows_per_thread(s.n), [&](int64_t begin, int64_t end) {
      const Scratch buffers = row_buffers(s);
      run(rows, begin, end, NormSums{nullptr, nullptr, nullptr}, buffers.get());
    });
    return;
  }
  if (call.dweight.exact || call.dbias.exact || call.dx_bias.exact) {
    exact_norm_backward(rows, with_dweight, run);
    return;
  }
  const int64_t blocks = row_blocks(s.rows);
  const int64_t row_bytes = s.n * item_of(s);
  const Scratch partial(3 * blocks * row_bytes);
  std::memset(partial.get(), 0, static_cast<size_t>(3 * blocks * row_bytes));
  char* dweights = static_cast<char*>(partial.get());
  char* dbiases = dweights + blocks * row_bytes;
  char* dx_biases = dbiases + blocks * row_bytes;
  const int64_t grain =
      std::max<int64_t>(rows_per_thread(s.n) * blocks / std::max<int64_t>(s.rows, 1), 1);
  parallel_for(blocks, grain, [&](int64_t begin, int64_t end) {
    const Scratch buffers = row_buffers(s);
    for (int64_t block = begin; block < end; ++block) {
      const NormSums sums = {with_dweight ? dweights + block * row_bytes : nullptr,
                             with_dbias ? dbiases + block * row_bytes : nullptr,
                             with_dx_bias ? dx_biases + block * row_bytes : nullptr};
      run(rows, s.rows * block / blocks, s.rows * (block + 1) / blocks, sums, buffers.get());
    }
  });
  const DType computed = compute_dtype(s.sum_dtype);
  combine_blocks(computed, blocks, s.n, dweights, call.dweight);
  combine_blocks(computed, blocks, s.n, dbiases, call.dbias);
  combine_blocks(computed, blocks, s.n, dx_biases, call.dx_bias);
}

}  // namespace tapestry::kernels
