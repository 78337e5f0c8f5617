#include "parallel_core/estimates/update_memory.h"

#include <algorithm>

namespace tapestry {

namespace {

// Elements of the matrices of a round of so many, the largest ones first.
double in_first_round(const std::vector<UpdatedMatrices>& matrices, double places) {
  std::vector<UpdatedMatrices> sorted = matrices;
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.rows * a.columns > b.rows * b.columns; });
  double sum = 0;
  for (const UpdatedMatrices& some : sorted) {
    const double taken = std::min(some.count, places);
    sum += taken * some.rows * some.columns;
    places -= taken;
  }
  return sum;
}

// Of the products of one matrix in float32: its direction, what is multiplied, the next power of
// it, and two square ones (optim/newton_schulz.h).
double in_products(const UpdatedMatrices& matrix, bool half) {
  const double elements = matrix.rows * matrix.columns;
  const double small = std::min(matrix.rows, matrix.columns);
  return half ? (4 + 4 + 2 + 2) * elements + 2 * 2 * small * small
              : (4 + 4 + 4) * elements + 2 * 4 * small * small;
}

}  // namespace

double muon_workspace(const std::vector<UpdatedMatrices>& matrices,
                      const MatrixHolders& holders,
                      const MuonNeeds& needs) {
  double whole = 0;  // bytes of the largest
  double products = 0;
  for (const UpdatedMatrices& some : matrices) {
    whole = std::max(whole, 4 * some.rows * some.columns);
    products = std::max(products, in_products(some, needs.half_products));
  }
  const auto slices = static_cast<double>(holders.slices);
  const auto copies = static_cast<double>(holders.copies);
  const double all = 4 * in_first_round(matrices, slices * copies);
  const double own = all / (slices * copies);  // as slices of some, or one whole
  const double parts = holders.in_pieces ? own : all / slices;
  const bool sliced = slices > 1;
  // Parts are read, sent and received, and become slices; these become a whole matrix.
  const double gather =
      std::max(holders.in_pieces ? parts + 2 * own : parts, sliced ? own + own + whole : 0.0);
  const double held = whole + (sliced ? own : 0);
  double result = held + whole;
  double scatter = result;
  if (sliced) {
    scatter = std::max(scatter, result + 2 * own);
    result += own;
  }
  if (copies > 1) {
    scatter = std::max(scatter, result + (holders.in_pieces ? own : copies * own) + parts);
  }
  return std::max(
      {gather + needs.messages, held + products + needs.packed, scatter + needs.messages});
}

double factored_workspace(const std::vector<UpdatedMatrices>& matrices,
                          const MatrixHolders& holders) {
  constexpr double kLeastRows = 64;  // of a tile
  const double share =
      1.0 / static_cast<double>(holders.slices * (holders.in_pieces ? holders.copies : 1));
  double bytes = 0;
  for (const UpdatedMatrices& some : matrices) {
    // In double precision: a row's sum in its tile, and sums of rows and columns over all tiles.
    const double sums = 8 * share * some.rows + 8 * (some.rows + some.columns);
    const double roots = 4 * (some.rows + some.columns);
    const double rows = std::min(kLeastRows, std::max(1.0, some.rows_together));
    const double of_tiles = 4 * some.columns * (share * some.rows / rows + 1);
    bytes += some.count * (sums + roots + of_tiles);
  }
  return bytes;
}

}  // namespace tapestry
