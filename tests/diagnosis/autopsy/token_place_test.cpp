#include "diagnosis/autopsy/token_place.h"

#include <gtest/gtest.h>

#include "tests/parallel_core/parallel_testing.h"

namespace tapestry::autopsy {
namespace {

void expect_place(const TokenPlace& place, int64_t row, int64_t position) {
  EXPECT_EQ(place.row, row);
  EXPECT_EQ(place.position, position);
}

TEST(TokenPlace, OfWholeSequences) {
  // Element 5 of token 3 of row 1; two rows of four tokens with six values each.
  expect_place(token_place({2, 4, 6}, (4 + 3) * 6 + 5, 2, 4, 1), 1, 3);
  expect_place(token_place({4, 2, 6}, (3 * 2 + 1) * 6 + 5, 2, 4, 0), 1, 3);
  expect_place(token_place({8, 6}, 7 * 6 + 5, 2, 4, 1), 1, 3);
  expect_place(token_place({8, 6}, 7 * 6 + 5, 2, 4, 0), 1, 3);
  expect_place(token_place({2, 3, 4, 6}, ((3 + 2) * 4 + 3) * 6, 2, 4, 1), 1, 3);  // heads
}

TEST(TokenPlace, IsNotKnownOfOtherForms) {
  EXPECT_FALSE(token_place({31, 6}, 7, 2, 4, 1).known());
  EXPECT_FALSE(token_place({}, 0, 2, 4, 1).known());
  EXPECT_FALSE(token_place({0, 4}, 0, 2, 4, 1).known());
}

// Chunks 1 and 2 of four: positions 2 to 5 of eight.
TEST(TokenPlace, OfTheChunksOfAContextParallelRank) {
  testing::run_parallel(2, {.context_parallel_size = 2}, [] {
    if (RankContext::current().rank() == 1) {
      expect_place(token_place({2, 4, 6}, (4 + 0) * 6, 2, 8, 1), 1, 2);
      expect_place(token_place({2, 4, 6}, (4 + 3) * 6, 2, 8, 1), 1, 5);
    } else {
      expect_place(token_place({2, 4, 6}, (4 + 3) * 6, 2, 8, 1), 1, 7);
    }
  });
}

TEST(TokenPlace, OfTheSliceOfASequenceParallelRank) {
  testing::run_parallel(2, {.tensor_model_parallel_size = 2}, [] {
    const int64_t first = RankContext::current().rank() * 4;
    expect_place(token_place({4, 2, 6}, (3 * 2 + 1) * 6, 2, 8, 0), 1, first + 3);
  });
}

}  // namespace
}  // namespace tapestry::autopsy
