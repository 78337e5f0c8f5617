#include "autograd/kernels/exact/exact_sums.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>

#include "autograd/kernels/elementwise/elementwise.h"
#include "autograd/kernels/machine/parallel_for.h"

namespace tapestry::kernels {

namespace {

constexpr int64_t kBlock = 1024;  // elements that stay in the first-level cache

const char* place_of(const void* x, DType dtype, int64_t elements) {
  return static_cast<const char*>(x) + elements * size_of(dtype);
}

// A row on the calling thread.
void add_terms(DType dtype, int64_t n, const void* x, double* sums) {
  if (dtype == kFloat32) {
    TAPESTRY_DISPATCH(add_row_to_exact)(n, static_cast<const float*>(x), sums);
    return;
  }
  const UnaryRow widen = cast_row(dtype, kFloat32);
  alignas(64) float wide[kBlock];
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t count = std::min(kBlock, n - i);
    widen(count, place_of(x, dtype, i), 1, wide, 1);
    TAPESTRY_DISPATCH(add_row_to_exact)(count, wide, sums + i);
  }
}

}  // namespace

void add_to_exact(DType dtype, int64_t n, const void* x, double* sums) {
  parallel_for(n, kGrainSize, [&](int64_t begin, int64_t end) {
    add_terms(dtype, end - begin, place_of(x, dtype, begin), sums + begin);
  });
}

void add_columns_to_exact(
    DType dtype, int64_t rows, int64_t n, const void* x, int64_t ld, double* sums) {
  // Threads have columns of their own: whole cache lines.
  constexpr int64_t kColumns = 64;
  const int64_t units = (n + kColumns - 1) / kColumns;
  const int64_t grain = std::max<int64_t>(1, kGrainSize / std::max<int64_t>(1, rows * kColumns));
  parallel_for(units, grain, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kColumns;
    const int64_t count = std::min(n, end * kColumns) - first;
    for (int64_t row = 0; row < rows; ++row) {
      add_terms(dtype, count, place_of(x, dtype, row * ld + first), sums + first);
    }
  });
}

double exact_to_float32(int64_t n, const double* sums, float* y) {
  std::mutex mutex;
  double largest = 0;
  const auto merge = [&](double own) {
    largest = std::isnan(own) || std::isnan(largest) ? own + largest : std::max(largest, own);
  };
  const auto convert = [&](int64_t begin, int64_t end) {
    parallel_for(end - begin, kGrainSize, [&](int64_t first, int64_t last) {
      const double own = TAPESTRY_DISPATCH(exact_row_to_float32)(last - first, sums + begin + first,
                                                                 y + begin + first);
      const std::scoped_lock lock(mutex);
      merge(own);
    });
  };
  const auto* begin = reinterpret_cast<const char*>(sums);
  const auto* out = reinterpret_cast<const char*>(y);
  if (out >= begin + n * size_of(kFloat64) || begin >= out + n * size_of(kFloat32)) {
    convert(0, n);
    return largest;
  }
  // In place: the second half of what is done so far is the place of as many elements more.
  alignas(64) float head[kBlock];
  int64_t done = std::min(n, kBlock);
  merge(TAPESTRY_DISPATCH(exact_row_to_float32)(done, sums, head));
  std::memcpy(y, head, static_cast<size_t>(done) * sizeof(float));
  while (done < n) {
    const int64_t end = std::min(n, 2 * done);
    convert(done, end);
    done = end;
  }
  return largest;
}

}  // namespace tapestry::kernels
