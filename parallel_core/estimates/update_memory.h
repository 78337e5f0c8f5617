// Temporaries of an optimizer's update.
#pragma once

#include <cstdint>
#include <vector>

namespace tapestry {

/// Matrices that an optimizer updates as such: as the world knows them, whole.
struct UpdatedMatrices {
  double rows = 0;
  double columns = 0;
  double count = 0;          ///< of which a rank has a part
  double rows_together = 0;  ///< in memory, without another matrix's between them
};

/// Who has parts of these matrices.
struct MatrixHolders {
  int64_t slices = 1;      ///< ranks that have other slices
  int64_t copies = 1;      ///< ranks that have the same slice
  bool in_pieces = false;  ///< or a piece of it each (zero_level)
};

/// What Muon's products are made in, and bytes beside them and beside its exchanges.
struct MuonNeeds {
  bool half_products = false;
  double packed = 0;
  double messages = 0;
};

/// Of Muon (optim/matrix_exchange.h): a round brings as many matrices together as there are
/// holders, one whole on each, where products of it are made, and takes the results apart.
double muon_workspace(const std::vector<UpdatedMatrices>& matrices,
                      const MatrixHolders& holders,
                      const MuonNeeds& needs);

/// Of Adafactor and Came (optim/factored_step.h): sums and roots of rows and columns, and the sums
/// of tiles.
double factored_workspace(const std::vector<UpdatedMatrices>& matrices,
                          const MatrixHolders& holders);

}  // namespace tapestry
