#include "autograd/kernels/gated_norm.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <mutex>

#include "autograd/kernels/exact/exact_sums.h"
#include "autograd/kernels/gated_norm_rows.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/kernels/machine/scratch.h"

namespace tapestry::kernels {

namespace {

namespace gated_norms {

[[maybe_unused]] bool fits(const GatedNormShape& s) {
  const bool wide = s.x_dtype == kFloat64;
  const auto goes_along = [&](DType dtype) {
    return is_floating(dtype) && (dtype == kFloat64) == wide;
  };
  return s.group > 0 && s.n % s.group == 0 && goes_along(s.x_dtype) && goes_along(s.z_dtype) &&
         goes_along(s.y_dtype) && goes_along(s.gain_dtype);
}

DType computed(const GatedNormShape& s) { return compute_dtype(s.x_dtype); }
int64_t gain_size(const GatedNormShape& s) { return s.gain_is_shared ? s.group : s.n; }
Scratch buffers(const GatedNormShape& s) {
  return Scratch(kGatedNormBuffers * s.n * size_of(computed(s)));
}

/// Calls body(begin, end, buffers) for all rows.
template <class Body>
void for_rows(const GatedNormShape& s, const Body& body) {
  parallel_for(s.rows, rows_per_thread(s.n), [&](int64_t begin, int64_t end) {
    const Scratch memory = buffers(s);
    body(begin, end, memory.get());
  });
}

/// The gain's gradient as exact sums, of which the share of a group in a row is a term: groups of a
/// row may be on several ranks. `gain` [size] in compute type or null.
void exact_backward(const GatedNormBackward& call, const void* gain, int64_t size) {
  const GatedNormShape& s = call.shape;
  assert(computed(s) == kFloat32);
  GatedNormBackward rows = call;
  Scratch repeated;
  if (s.gain_is_shared && gain != nullptr) {
    repeated = Scratch(s.n * size_of(kFloat32));
    for (int64_t at = 0; at < s.n; at += size) {
      std::memcpy(static_cast<float*>(repeated.get()) + at, gain,
                  static_cast<size_t>(size * size_of(kFloat32)));
    }
    rows.gain = repeated.get();
  }
  rows.shape.gain_is_shared = false;
  const auto run = TAPESTRY_DISPATCH(gated_norm_backward_rows);
  std::mutex mutex;
  auto* sums = static_cast<double*>(call.dgain.out);
  for_rows(s, [&](int64_t begin, int64_t end, void* memory) {
    const Scratch terms_memory(s.n * size_of(kFloat32) + size * size_of(kFloat64));
    auto* own = static_cast<double*>(terms_memory.get());
    auto* terms = reinterpret_cast<float*>(own + size);
    std::fill(own, own + size, 0.0);
    for (int64_t row = begin; row < end; ++row) {
      std::fill(terms, terms + s.n, 0.0F);
      run(rows, row, row + 1, terms, memory);
      for (int64_t at = 0; at < s.n; at += size) {
        TAPESTRY_DISPATCH(add_row_to_exact)(size, terms + at, own);
      }
    }
    const std::scoped_lock lock(mutex);
    for (int64_t i = 0; i < size; ++i) {
      sums[i] += own[i];
    }
  });
}

}  // namespace gated_norms

}  // namespace

void gated_norm(const GatedNormForward& call) {
  const GatedNormShape& s = call.shape;
  assert(gated_norms::fits(s) && call.rstd != nullptr);
  const ComputeView gain(s.gain_dtype, gated_norms::gain_size(s), call.gain);
  GatedNormForward rows = call;
  rows.gain = gain.get();
  const auto run = TAPESTRY_DISPATCH(gated_norm_rows);
  gated_norms::for_rows(
      s, [&](int64_t begin, int64_t end, void* memory) { run(rows, begin, end, memory); });
}

void gated_norm_backward(const GatedNormBackward& call) {
  const GatedNormShape& s = call.shape;
  assert(gated_norms::fits(s));
  const int64_t size = gated_norms::gain_size(s);
  const ComputeView gain(s.gain_dtype, size, call.gain);
  GatedNormBackward rows = call;
  rows.gain = gain.get();
  const auto run = TAPESTRY_DISPATCH(gated_norm_backward_rows);
  if (call.dgain.out == nullptr) {
    gated_norms::for_rows(s, [&](int64_t begin, int64_t end, void* memory) {
      run(rows, begin, end, nullptr, memory);
    });
    return;
  }
  if (call.dgain.exact) {
    gated_norms::exact_backward(rows, gain.get(), size);
    return;
  }
  const int64_t blocks = row_blocks(s.rows);
  const int64_t bytes = size * size_of(gated_norms::computed(s));
  const Scratch partial(blocks * bytes);
  std::memset(partial.get(), 0, static_cast<size_t>(blocks * bytes));
  const int64_t grain =
      std::max<int64_t>(rows_per_thread(s.n) * blocks / std::max<int64_t>(s.rows, 1), 1);
  parallel_for(blocks, grain, [&](int64_t begin, int64_t end) {
    const Scratch memory = gated_norms::buffers(s);
    for (int64_t block = begin; block < end; ++block) {
      run(rows, s.rows * block / blocks, s.rows * (block + 1) / blocks,
          static_cast<char*>(partial.get()) + block * bytes, memory.get());
    }
  });
  combine_blocks(gated_norms::computed(s), blocks, size, partial.get(), call.dgain);
}

void gated_squares(const GatedSquares& call) {
  assert(gated_norms::fits(call.shape));
  const auto run = TAPESTRY_DISPATCH(gated_squares_rows);
  gated_norms::for_rows(
      call.shape, [&](int64_t begin, int64_t end, void* memory) { run(call, begin, end, memory); });
}

void gated_squares_backward(const GatedSquaresBackward& call) {
  assert(gated_norms::fits(call.shape));
  const auto run = TAPESTRY_DISPATCH(gated_squares_backward_rows);
  gated_norms::for_rows(
      call.shape, [&](int64_t begin, int64_t end, void* memory) { run(call, begin, end, memory); });
}

}  // namespace tapestry::kernels
