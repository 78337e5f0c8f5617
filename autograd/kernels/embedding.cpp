#include "autograd/kernels/embedding.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <numeric>
#include <utility>

#include "autograd/kernels/elementwise/elementwise.h"
#include "autograd/kernels/exact/exact_sums.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/kernels/machine/scratch.h"

namespace tapestry::kernels {

namespace {

/// The places of ids below `vocab`, equal ids together and in ascending places: in one of the two
/// memories, each of n places. Stable passes over one byte of the ids after the other.
const int64_t* places_by_id(
    int64_t n, int64_t vocab, const int64_t* ids, int64_t* order, int64_t* spare) {
  constexpr int kBits = 8;
  constexpr int64_t kDigits = 1 << kBits;
  std::iota(order, order + n, int64_t{0});
  for (int shift = 0; ((vocab - 1) >> shift) > 0; shift += kBits) {
    const auto digit = [=](int64_t place) { return ids[place] >> shift & (kDigits - 1); };
    std::array<int64_t, kDigits + 1> next{};  // place of the next id with a digit
    for (int64_t i = 0; i < n; ++i) {
      ++next[static_cast<size_t>(digit(i) + 1)];
    }
    std::partial_sum(next.begin(), next.end(), next.begin());
    for (int64_t i = 0; i < n; ++i) {
      spare[next[static_cast<size_t>(digit(order[i]))]++] = order[i];
    }
    std::swap(order, spare);
  }
  return order;
}

}  // namespace

void embedding(DType dtype,
               DType y_dtype,
               int64_t rows,
               int64_t dim,
               const void* weight,
               const int64_t* ids,
               void* y) {
  const int64_t bytes = dim * size_of(dtype);
  const int64_t y_bytes = dim * size_of(y_dtype);
  if (bytes == 0) {
    return;
  }
  const UnaryRow convert = cast_row(dtype, y_dtype);
  const int64_t grain = std::max<int64_t>(4 * kGrainSize / bytes, 1);
  parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      convert(dim, static_cast<const char*>(weight) + ids[row] * bytes, 1,
              static_cast<char*>(y) + row * y_bytes, 1);
    }
  });
}

void embedding_backward(DType dtype,
                        DType dy_dtype,
                        int64_t n_ids,
                        int64_t vocab,
                        int64_t dim,
                        const int64_t* ids,
                        const void* dy,
                        void* dweight) {
  assert(is_floating(dtype) &&
         (dtype == dy_dtype || (dtype == kFloat32 && size_of(dy_dtype) == 2)));
  assert(std::all_of(ids, ids + n_ids, [&](int64_t id) { return id >= 0 && id < vocab; }));
  if (n_ids == 0 || dim == 0) {
    return;
  }
  const Scratch memory(2 * n_ids * size_of(kInt64));
  auto* places = static_cast<int64_t*>(memory.get());
  const int64_t* order = places_by_id(n_ids, vocab, ids, places, places + n_ids);
  // Threads share the columns, not the rows: nobody adds to another's element. A cache line is 16
  // columns of float32.
  constexpr int64_t kColumns = 16;
  const int64_t groups = (dim + kColumns - 1) / kColumns;
  const int64_t grain = std::max<int64_t>(kGrainSize / (n_ids * kColumns), 1);
  const auto run = TAPESTRY_DISPATCH(embedding_backward_columns);
  parallel_for(groups, grain, [&](int64_t begin, int64_t end) {
    run(dtype, dy_dtype, begin * kColumns, std::min(end * kColumns, dim), dim, n_ids, order, ids,
        dy, dweight);
  });
}

void embedding_exact_sums(
    DType dy_dtype, int64_t n_ids, int64_t dim, const int64_t* ids, const void* dy, double* sums) {
  // Threads share the columns: a cache line is 8 sums.
  constexpr int64_t kColumns = 8;
  const int64_t groups = (dim + kColumns - 1) / kColumns;
  const int64_t grain = std::max<int64_t>(kGrainSize / (std::max<int64_t>(n_ids, 1) * kColumns), 1);
  parallel_for(groups, grain, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kColumns;
    const int64_t count = std::min(end * kColumns, dim) - first;
    for (int64_t i = 0; i < n_ids; ++i) {
      const char* row = static_cast<const char*>(dy) + (i * dim + first) * size_of(dy_dtype);
      add_columns_to_exact(dy_dtype, 1, count, row, dim, sums + ids[i] * dim + first);
    }
  });
}

}  // namespace tapestry::kernels
