#include "autograd/kernels/embedding.h"

#include <algorithm>
#include <cassert>
#include <numeric>

#include "autograd/kernels/elementwise/elementwise.h"
#include "autograd/kernels/exact/exact_sums.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/kernels/machine/scratch.h"

namespace tapestry::kernels {

namespace {

/// places = 0 .. n-1, those of equal ids together and in ascending order.
void sort_places_by_id(int64_t n, int64_t vocab, const int64_t* ids, int64_t* places) {
  constexpr int kPlaceBits = 32;
  if (n <= int64_t{1} << kPlaceBits && vocab <= int64_t{1} << 31) {
    // Both in one number: it is compared without looking anything up.
    for (int64_t i = 0; i < n; ++i) {
      places[i] = ids[i] << kPlaceBits | i;
    }
    std::sort(places, places + n);
    for (int64_t i = 0; i < n; ++i) {
      places[i] &= (int64_t{1} << kPlaceBits) - 1;
    }
    return;
  }
  std::iota(places, places + n, int64_t{0});
  std::sort(places, places + n,
            [&](int64_t a, int64_t b) { return ids[a] != ids[b] ? ids[a] < ids[b] : a < b; });
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
  const Scratch memory(n_ids * size_of(kInt64));
  auto* order = static_cast<int64_t*>(memory.get());
  sort_places_by_id(n_ids, vocab, ids, order);
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
