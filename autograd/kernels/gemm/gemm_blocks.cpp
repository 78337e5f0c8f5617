#include "autograd/kernels/gemm/gemm_blocks.h"

#include "autograd/kernels/machine/ceil_div.h"

namespace tapestry::kernels {

GemmBlocks blocks_for(const GemmShape& s, int64_t team) {
  constexpr int64_t kUnit = 48;                     // tiles are 4 to 48 long
  constexpr int64_t kLeastWork = int64_t{1} << 18;  // multiplications: some 5 us
  const int64_t row_units = ceil_div(s.m, kUnit);
  const int64_t column_units = ceil_div(s.n, kUnit);
  const double worthwhile = static_cast<double>(s.m) * static_cast<double>(s.n) *
                            static_cast<double>(s.k) / static_cast<double>(kLeastWork);
  const auto most = static_cast<int64_t>(std::clamp(worthwhile, 1.0, static_cast<double>(team)));
  GemmBlocks best = {s.m, s.n, 1, 1};
  for (int64_t rows = 1; rows <= std::min(most, row_units); ++rows) {
    const int64_t columns = std::min(most / rows, column_units);
    const GemmBlocks blocks = {ceil_div(row_units, rows) * kUnit,
                               ceil_div(column_units, columns) * kUnit, rows, columns};
    const int64_t count = rows * columns;
    const int64_t best_count = best.rows * best.columns;
    if (count > best_count || (count == best_count && blocks.block_rows + blocks.block_columns <
                                                          best.block_rows + best.block_columns)) {
      best = blocks;
    }
  }
  best.block_rows = std::min(best.block_rows, s.m);
  best.block_columns = std::min(best.block_columns, s.n);
  // Sizes are rounded up: the last blocks may be empty.
  best.rows = ceil_div(s.m, best.block_rows);
  best.columns = ceil_div(s.n, best.block_columns);
  return best;
}

}  // namespace tapestry::kernels
