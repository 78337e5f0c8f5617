// How one product is shared by a team whose members call a library that knows nothing of it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "autograd/kernels/gemm/gemm_shape.h"
#include "autograd/kernels/machine/parallel_for.h"

namespace tapestry::kernels {

/// C as rows x columns of blocks, each but the last ones of the given size.
struct GemmBlocks {
  int64_t block_rows;
  int64_t block_columns;
  int64_t rows;
  int64_t columns;
};

/// As many blocks as the team has threads, or fewer where the work is little; as square as can be,
/// since each reads its rows of A and its columns of B. Their sizes are multiples of what any
/// library multiplies at once, so that an element of C is in the same place of its tile.
GemmBlocks blocks_for(const GemmShape& shape, int64_t team);

/// Calls multiply(shape, a, b, c) for each block of C of one product, on the team.
template <class Multiply>
void multiply_blocks(
    const GemmShape& s, const void* a, const void* b, void* c, const Multiply& multiply) {
  const GemmBlocks blocks = blocks_for(s, in_team() ? 1 : num_threads());
  parallel_for(blocks.rows * blocks.columns, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t row = block / blocks.columns * blocks.block_rows;
      const int64_t column = block % blocks.columns * blocks.block_columns;
      GemmShape own = s;
      own.m = std::min(blocks.block_rows, s.m - row);
      own.n = std::min(blocks.block_columns, s.n - column);
      const int64_t item = size_of(s.dtype);
      multiply(own, static_cast<const char*>(a) + row * (s.trans_a ? 1 : s.lda) * item,
               static_cast<const char*>(b) + column * (s.trans_b ? s.ldb : 1) * item,
               static_cast<char*>(c) + (row * s.ldc + column) * size_of(s.c_dtype));
    }
  });
}

}  // namespace tapestry::kernels
