#include "parallel_core/scoring/text_windows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "autograd/tensor/error.h"
#include "tests/message_of.h"

namespace tapestry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(TextWindows, OneHoldsAShortText) {
  EXPECT_THAT(text_windows(5, 1, 8, 4), ElementsAre(TextWindow{0, 5, 1}));
  EXPECT_THAT(text_windows(9, 1, 8, 4), ElementsAre(TextWindow{0, 9, 1}));
  EXPECT_THAT(text_windows(1, 1, 8, 4), IsEmpty());
  EXPECT_THAT(text_windows(4, 3, 8, 4), ElementsAre(TextWindow{0, 4, 3}));
}

TEST(TextWindows, MoveOnByTheStride) {
  EXPECT_THAT(text_windows(12, 1, 5, 3),
              ElementsAre(TextWindow{0, 6, 1}, TextWindow{3, 9, 3}, TextWindow{6, 12, 3}));
  EXPECT_THAT(text_windows(8, 1, 5, 5), ElementsAre(TextWindow{0, 6, 1}, TextWindow{2, 8, 4}));
}

TEST(TextWindows, ScoreEachTokenOnceBehindEnoughOthers) {
  for (const int64_t context : {1, 2, 3, 7}) {
    for (int64_t stride = 1; stride <= context; ++stride) {
      for (int64_t first = 1; first <= context; ++first) {
        for (int64_t tokens = 0; tokens < 30; ++tokens) {
          int64_t next = first;
          for (const TextWindow& window : text_windows(tokens, first, context, stride)) {
            ASSERT_LE(window.end - window.begin, context + 1);
            ASSERT_EQ(window.begin + window.first, next);
            ASSERT_GE(window.first, std::min(next, context + 1 - stride));
            ASSERT_LT(next, window.end);
            next = window.end;
          }
          ASSERT_EQ(next, std::max(tokens, first));
        }
      }
    }
  }
}

TEST(TextWindows, RefusesStridesThatLeaveTokensOut) {
  EXPECT_THAT(message_of<ValueError>([] { text_windows(9, 1, 4, 0); }),
              HasSubstr("the stride is 0, expected 1 to the context of 4 tokens"));
  EXPECT_THAT(message_of<ValueError>([] { text_windows(9, 1, 4, 5); }),
              HasSubstr("the stride is 5"));
  EXPECT_THAT(message_of<ValueError>([] { text_windows(9, 0, 4, 2); }), HasSubstr("is token 0"));
  EXPECT_THAT(message_of<ValueError>([] { text_windows(9, 5, 4, 2); }), HasSubstr("is token 5"));
}

}  // namespace
}  // namespace tapestry
