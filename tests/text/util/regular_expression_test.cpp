#include "text/util/regular_expression.h"

#include <gmock/gmock.h>

#include "autograd/tensor/error.h"

namespace tapestry {
namespace {

using testing::ElementsAre;
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

TEST(RegularExpression, AGroupThatThereIsNotIsAnErrorAndDollarsAreWrittenTwice) {
  const RegularExpression expression("(a)|(b)");
  EXPECT_EQ(expression.replacement("b", "<$1|${2}|$0|$$>"), "<|b|b|$>");
  EXPECT_THROW(expression.replacement("a", "$3"), ValueError);
}

TEST(RegularExpression, GroupsOfAMatchAtTheStart) {
  const RegularExpression expression("(x)?layers\\.(\\d+)\\.");
  EXPECT_THAT(expression.groups_at_start("layers.7.mlp"), ElementsAre("layers.7.", "", "7"));
  EXPECT_THAT(expression.groups_at_start("a.layers.7.mlp"), IsEmpty());
}

TEST(RegularExpression, OneDialect) {
  EXPECT_TRUE(RegularExpression("(?i)WEIGHT$").is_found_in("lm_head.weight"));
  EXPECT_TRUE(RegularExpression("(?<!mlp\\.)w1").is_found_in("ffn.w1"));
  EXPECT_FALSE(RegularExpression("(?<!mlp\\.)w1").is_found_in("mlp.w1"));
  EXPECT_TRUE(RegularExpression("[[:alpha:]]+\\d").matches("w1"));
  EXPECT_TRUE(RegularExpression("\\w+").matches("\xC3\xA9t\xC3\xA9"));
  EXPECT_FALSE(RegularExpression("a$").is_found_in("a\n"));
  EXPECT_FALSE(RegularExpression("a.b").matches("a\nb"));
  EXPECT_FALSE(RegularExpression("a").is_found_in("\xFF"));  // names that are no UTF-8 have no a
}

// What would run for ever, or deep into the stack, ends with the expression's own words.
TEST(RegularExpression, StepsAndDepthAreBounded) {
  const RegularExpression slow("([a-z._0-9]+)+[!?]", "monitor_config.target");
  try {
    slow.is_found_in("layers.0.attention.linear_qkv.weight.and.what.follows");
    FAIL();
  } catch (const ValueError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("monitor_config.target: '([a-z._0-9]+)+[!?]' cannot be matched "
                          "against 'layers.0.attention"));
    EXPECT_THAT(error.what(), HasSubstr("it takes too many steps"));
  }
  EXPECT_FALSE(RegularExpression("([a-z._0-9]+)+!").is_found_in("layers.0.attention.wq.weight"));
  const std::string deep = std::string(10'000, '(') + "a" + std::string(10'000, ')');
  EXPECT_THAT(RegularExpression::complaint(deep), HasSubstr("parentheses are too deeply nested"));
  EXPECT_THAT(RegularExpression::complaint(std::string(40'000, 'a')), HasSubstr("40000 bytes"));
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
