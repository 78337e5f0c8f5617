#include "autograd/kernels/column_sums.h"

#include "autograd/kernels/machine/scratch.h"

namespace tapestry::kernels {

namespace {

template <class C>
void combine(int64_t blocks, int64_t n, const C* partial, const ColumnSums& out) {
  constexpr int64_t kColumns = 64;  // at a time, so that a cache line is used whole
  const int64_t item = size_of(out.dtype);
  C piece[kColumns];
  for (int64_t done = 0; done < n; done += kColumns) {
    const int64_t m = std::min(kColumns, n - done);
    char* target = static_cast<char*>(out.out) + done * item;
    double sums[kColumns] = {};
    if (out.accumulate) {
      TAPESTRY_DISPATCH(to_compute)(out.dtype, m, target, piece);
      std::copy(piece, piece + m, sums);
    }
    for (int64_t block = 0; block < blocks; ++block) {
      const C* row = partial + block * n + done;
      for (int64_t i = 0; i < m; ++i) {
        sums[i] += row[i];
      }
    }
    std::transform(sums, sums + m, piece, [](double sum) { return static_cast<C>(sum); });
    TAPESTRY_DISPATCH(from_compute)(out.dtype, m, piece, target);
  }
}

}  // namespace

void combine_blocks(
    DType partial_dtype, int64_t blocks, int64_t n, const void* partial, const ColumnSums& sums) {
  if (sums.out == nullptr) {
    return;
  }
  if (partial_dtype == kFloat64) {
    combine(blocks, n, static_cast<const double*>(partial), sums);
  } else {
    combine(blocks, n, static_cast<const float*>(partial), sums);
  }
}

}  // namespace tapestry::kernels
