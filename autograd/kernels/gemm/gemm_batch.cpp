#include "autograd/kernels/gemm/gemm_batch.h"

#include <algorithm>

#include "autograd/kernels/machine/ceil_div.h"

namespace tapestry::kernels {

GemmBatch spread_batch(const GemmShape& s, int64_t team, bool divisible) {
  constexpr int64_t kUnitsPerThread = 4;
  constexpr int64_t kSmallProduct = int64_t{1} << 21;  // multiplications: about 30 us
  constexpr int64_t kLeastRows = 32;                   // B is packed again for each block of rows
  const GemmBatch whole = {true, s.m, 1};
  // A serial product wastes nothing on synchronisation, so enough of them beat one shared product.
  if (s.batch >= kUnitsPerThread * team) {
    return whole;
  }
  const int64_t row_work = s.n * std::max<int64_t>(s.k, 1);
  const int64_t work = s.m * row_work;
  if (s.batch == 1 || !divisible) {
    return work < kSmallProduct ? whole : GemmBatch{false, s.m, 1};
  }
  if (work >= kSmallProduct * team) {
    return {false, s.m, 1};
  }
  // The quarter of a small product is the least that is worth a unit.
  const int64_t worthwhile = std::max(kLeastRows, ceil_div(kSmallProduct / 4, row_work));
  const int64_t wanted = ceil_div(s.m, ceil_div(kUnitsPerThread * team, s.batch));
  const int64_t rows =
      std::min(s.m, ceil_div(std::max(worthwhile, wanted), kLeastRows) * kLeastRows);
  return {true, rows, ceil_div(s.m, rows)};
}

}  // namespace tapestry::kernels
