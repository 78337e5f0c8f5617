#include "autograd/kernels/gemm/gemm_exact.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <vector>

#include "autograd/kernels/elementwise/elementwise.h"
#include "autograd/kernels/exact_sums.h"
#include "autograd/kernels/gemm/gemm.h"
#include "autograd/kernels/gemm/gemm_tiled.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/kernels/machine/scratch.h"

namespace tapestry::kernels {

namespace {

const char* elements_of(const void* x, DType dtype, int64_t elements) {
  return static_cast<const char*>(x) + elements * size_of(dtype);
}

// to [m,n] = the sum of the leaf that runs[first] begins; returns the run behind it.
size_t sum_of_leaf(const GemmShape& s,
                   std::span<const SumRun> runs,
                   size_t first,
                   const void* a,
                   const void* b,
                   float* to) {
  GemmShape own = s;
  own.c_dtype = kFloat32;
  own.batch = 1;
  own.alpha = 1;
  own.beta = 0;
  own.ldc = s.n;
  size_t i = first;
  bool more = true;
  while (more && i < runs.size()) {
    const SumRun& run = runs[i++];
    more = !run.ends_leaf;
    own.k = run.end - run.begin;
    if (own.k > 0) {
      tiled_gemm(own, elements_of(a, s.dtype, s.trans_a ? run.begin * s.lda : run.begin),
                 elements_of(b, s.dtype, s.trans_b ? run.begin : run.begin * s.ldb), to);
      own.beta = 1;
    }
  }
  if (own.beta == 0) {
    std::fill(to, to + s.m * s.n, 0.0F);
  }
  return i;
}

void add_floats(int64_t n, const float* x, float* y) {
  const BinaryRow sum = binary_row(BinaryOp::kAdd, kFloat32);
  parallel_for(n, kGrainSize, [&](int64_t begin, int64_t end) {
    sum(end - begin, y + begin, 1, x + begin, 1, y + begin, 1);
  });
}

}  // namespace

void tree_gemm(
    const GemmShape& s, std::span<const SumRun> runs, const void* a, const void* b, void* c) {
  const int64_t size = s.m * s.n;
  std::vector<Scratch> levels;  // sums of 2^i leaves that wait for their neighbour
  std::vector<bool> waits;
  Scratch sum;
  for (size_t i = 0; i < runs.size();) {
    sum = Scratch(size * size_of(kFloat32));
    i = sum_of_leaf(s, runs, i, a, b, static_cast<float*>(sum.get()));
    size_t level = 0;
    for (; level < levels.size() && waits[level]; ++level) {
      add_floats(size, static_cast<const float*>(levels[level].get()),
                 static_cast<float*>(sum.get()));
      waits[level] = false;
    }
    if (level == levels.size()) {
      levels.emplace_back();
      waits.push_back(false);
    }
    levels[level] = std::move(sum);
    waits[level] = true;
  }
  assert(!levels.empty() && waits.back());
  const auto* total = static_cast<const float*>(levels.back().get());
  const UnaryRow from_c = cast_row(s.c_dtype, kFloat32);
  const UnaryRow to_c = cast_row(kFloat32, s.c_dtype);
  const auto alpha = static_cast<float>(s.alpha);
  const auto beta = static_cast<float>(s.beta);
  for (int64_t row = 0; row < s.m; ++row) {
    char* out = static_cast<char*>(c) + row * s.ldc * size_of(s.c_dtype);
    std::vector<float> values(total + row * s.n, total + (row + 1) * s.n);
    std::vector<float> old(static_cast<size_t>(s.n));
    if (beta != 0) {
      from_c(s.n, out, 1, old.data(), 1);
    }
    for (size_t j = 0; j < values.size(); ++j) {
      values[j] = values[j] * alpha + (beta != 0 ? beta * old[j] : 0);
    }
    to_c(s.n, values.data(), 1, out, 1);
  }
}

void exact_sum_gemm(
    const GemmShape& s, std::span<const SumRun> runs, const void* a, const void* b, double* sums) {
  const Scratch leaf(s.m * s.n * size_of(kFloat32));
  auto* values = static_cast<float*>(leaf.get());
  for (size_t i = 0; i < runs.size();) {
    i = sum_of_leaf(s, runs, i, a, b, values);
    for (int64_t row = 0; row < s.m; ++row) {
      if (s.alpha != 1) {
        std::transform(values + row * s.n, values + (row + 1) * s.n, values + row * s.n,
                       [&](float x) { return x * static_cast<float>(s.alpha); });
      }
      TAPESTRY_DISPATCH(add_row_to_exact)(s.n, values + row * s.n, sums + row * s.ldc);
    }
  }
}

}  // namespace tapestry::kernels
