#include "parallel_core/config/regular_expression.h"

#include <gmock/gmock.h>

#include "autograd/tensor/error.h"

namespace tapestry {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST(RegularExpression, MatchesWholeNamesAndFindsParts) {
  const RegularExpression expression("layers\\.[02]\\.");
  EXPECT_FALSE(expression.matches("layers.0.attention"));
  EXPECT_TRUE(expression.is_found_in("layers.0.attention"));
  EXPECT_FALSE(expression.is_found_in("layers.1.attention"));
  EXPECT_TRUE(RegularExpression("layers\\.\\d+").matches("layers.12"));
}

TEST(RegularExpression, PutsGroupsOfAWholeMatchIntoAText) {
  const RegularExpression expression("h\\.(\\d+)\\.(attn|mlp)");
  EXPECT_EQ(expression.replacement("h.3.mlp", "layers.$1.$2"), "layers.3.mlp");
  EXPECT_EQ(expression.replacement("h.3.mlp.c_fc", "layers.$1.$2"), std::nullopt);
}

TEST(RegularExpression, CopiesMatchAlike) {
  std::optional<RegularExpression> first(std::in_place, "a+");
  const RegularExpression second = *first;
  first.reset();
  EXPECT_TRUE(second.matches("aaa"));
}

TEST(RegularExpression, ATextThatIsNoneIsNamed) {
  EXPECT_THAT(RegularExpression::complaint("a|b"), IsEmpty());
  EXPECT_THAT(RegularExpression::complaint("a("), Not(IsEmpty()));
  try {
    const RegularExpression expression("a(");
    FAIL();
  } catch (const ValueError& error) {
    EXPECT_THAT(error.what(), HasSubstr("'a(' is no regular expression: "));
  }
}

}  // namespace
}  // namespace tapestry
