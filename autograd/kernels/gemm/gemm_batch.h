// How a batch of products is spread over a team; used by gemm.cpp only.
#pragma once

#include <cstdint>

#include "autograd/kernels/gemm/gemm_shape.h"

namespace tapestry::kernels {

/// Each product is computed by the whole team, one after the other (`spread` false), or the team
/// takes units: products, or blocks of rows of C where there are too few of them.
struct GemmBatch {
  bool spread;
  int64_t rows;   // of C in a unit; the last of a product may have fewer
  int64_t parts;  // units of a product
};

/// Several products that are too small for a team each are spread. `divisible`: the implementation
/// gives the same bits for a block of rows as for all of them. Batch, m, n > 0.
GemmBatch spread_batch(const GemmShape& shape, int64_t team, bool divisible);

}  // namespace tapestry::kernels
