#include "autograd/kernels/gemm/gemm_blocks.h"

#include <gtest/gtest.h>

#include <vector>

#include "autograd/kernels/machine/ceil_div.h"

namespace tapestry::kernels {
namespace {

TEST(GemmBlocks, CoverCWithoutGapsByAtMostATeam) {
  for (const int64_t team : {1, 2, 3, 4, 6, 7, 16, 32}) {
    for (const int64_t m : {1, 47, 48, 49, 100, 768, 1000}) {
      for (const int64_t n : {1, 48, 50, 300, 3072}) {
        const GemmShape shape = {.m = m, .n = n, .k = 768};
        const GemmBlocks blocks = blocks_for(shape, team);
        EXPECT_LE(blocks.rows * blocks.columns, team);
        EXPECT_EQ(blocks.rows, ceil_div(m, blocks.block_rows));
        EXPECT_EQ(blocks.columns, ceil_div(n, blocks.block_columns));
        EXPECT_TRUE(blocks.rows == 1 || blocks.block_rows % 48 == 0);
        EXPECT_TRUE(blocks.columns == 1 || blocks.block_columns % 48 == 0);
      }
    }
  }
}

TEST(GemmBlocks, ALargeProductHasWorkForAllAndSquareBlocks) {
  const GemmBlocks square = blocks_for({.m = 1536, .n = 1536, .k = 512}, 4);
  EXPECT_EQ(square.rows, 2);
  EXPECT_EQ(square.columns, 2);
  const GemmBlocks wide = blocks_for({.m = 96, .n = 4608, .k = 512}, 4);
  EXPECT_EQ(wide.rows, 1);
  EXPECT_EQ(wide.columns, 4);
  const GemmBlocks vector = blocks_for({.m = 1, .n = 50'304, .k = 768}, 2);
  EXPECT_EQ(vector.columns, 2);
}

TEST(GemmBlocks, ASmallProductStaysWhole) {
  const GemmBlocks blocks = blocks_for({.m = 64, .n = 64, .k = 64}, 8);
  EXPECT_EQ(blocks.rows * blocks.columns, 1);
  const GemmBlocks empty_sum = blocks_for({.m = 64, .n = 64, .k = 0}, 8);
  EXPECT_EQ(empty_sum.rows * empty_sum.columns, 1);
}

}  // namespace
}  // namespace tapestry::kernels
