// Cuts a sum of leaves into blocks whose panels stay in the second-level cache; used by
// gemm_exact.cpp only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "autograd/kernels/gemm/gemm_exact.h"
#include "autograd/kernels/gemm/gemm_leaves.h"

namespace tapestry::kernels {

/// What LeafSums points to.
struct LeafBlock {
  std::vector<PackedRun> runs;
  std::vector<LeafPiece> pieces;
  int64_t items = 0;
  int64_t elements = 0;  ///< of k
};

struct LeafPlan {
  std::vector<LeafBlock> blocks;  ///< none is without items; none at all if every leaf is empty
  bool in_place = false;          ///< see LeafSums
  uint32_t kept = 0;              ///< bit s: a block keeps slot s for another
};

/// `per_item`: elements of an item. `tree`: the leaves, a power of two, at most 2^16, make one sum;
/// otherwise each is one. `in_place`: rows of A could be read where they lie if the runs allow it.
LeafPlan plan_leaves(std::span<const SumRun> runs, int64_t per_item, bool tree, bool in_place);

}  // namespace tapestry::kernels
