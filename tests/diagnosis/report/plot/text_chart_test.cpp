#include "diagnosis/report/plot/text_chart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <regex>
#include <sstream>

#include "diagnosis/report/plot/letters.h"
#include "diagnosis/report/plot/plot.h"

namespace tapestry::plot {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

RunMetrics falling(const std::string& name, int steps, double scale, int eval_every) {
  RunMetrics run{.name = name};
  for (int i = 1; i <= steps; ++i) {
    StepLosses step{.step = i, .loss = 1 + scale / i, .tokens = 100, .seconds = 1};
    if (eval_every > 0 && i % eval_every == 0) {
      step.eval_loss = 1.5 + scale / i;
    }
    run.steps.push_back(step);
  }
  return run;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    lines.push_back(line);
  }
  return lines;
}

// The picture without its legend.
std::string drawing_of(const std::string& text) { return text.substr(0, text.find("\na ")); }

// 28 columns: step 1 is in the column 27 / 4, rounded; the lines between are cut the same way.
TEST(TextChart, ASmallOneAsItIs) {
  const RunMetrics run{.name = "r",
                       .steps = {{.step = 1, .loss = 5},
                                 {.step = 2, .loss = 4},
                                 {.step = 3, .loss = 3, .eval_loss = 5},
                                 {.step = 4, .loss = 2}}};
  EXPECT_EQ(text_chart(make_chart({run}, XAxis::kSteps, 0), {.columns = 30}),
            "loss per token\n"
            "5+       aa           A\n"
            " |         aaaa\n"
            "4+             aa\n"
            " |               aa\n"
            " |                 aa\n"
            "3+                   aaa\n"
            " |                      aaaa\n"
            "2+                          aa\n"
            " ++-------------+------------+\n"
            "  0             2            4\n"
            "                         steps\n"
            "a r, training: last 2.0000\n"
            "A r, validation\n"
            "  last 5.0000, lowest 5.0000\n");
}

TEST(TextChart, RespectsTheWidth) {
  RunMetrics gaps = falling("a run with quite a long name of its own, 中文, for sure", 40, 3, 10);
  gaps.steps[5].loss = std::nan("");
  for (const bool utf8 : {false, true}) {
    for (const int columns : {1, 2, 5, 10, 17, 30, 60, 80, 120, 300}) {
      const Chart chart = make_chart({falling("b", 500, 900000, 50), gaps}, XAxis::kTokens, 0);
      const std::string text = text_chart(chart, {.columns = columns, .utf8 = utf8});
      for (const std::string& line : lines_of(text)) {
        EXPECT_LE(columns_of(line), columns) << line;
      }
      if (columns >= 60) {
        const std::vector<std::string> lines = lines_of(text);
        EXPECT_TRUE(std::any_of(lines.begin(), lines.end(), [&](const std::string& line) {
          return columns_of(line) == columns;
        })) << text;
        EXPECT_THAT(std::regex_replace(text, std::regex("\n  "), " "),
                    HasSubstr("1 of 40 training losses is not finite"));
        EXPECT_LE(lines.size(), 32U);
      }
    }
  }
}

TEST(TextChart, AsciiIsAscii) {
  const Chart chart = make_chart({falling("Läufe/中", 100, 3, 10)}, XAxis::kSteps, 0);
  const auto is_ascii = [](const std::string& text) {
    return std::all_of(text.begin(), text.end(),
                       [](char c) { return c == '\n' || (c >= ' ' && c <= '~'); });
  };
  EXPECT_TRUE(is_ascii(text_chart(chart, {})));
  EXPECT_FALSE(is_ascii(text_chart(chart, {.utf8 = true})));
  EXPECT_THAT(text_chart(chart, {.utf8 = true}), HasSubstr("Läufe/中, training"));
}

// Curves on the same places, in braille and in ASCII, without colours.
TEST(TextChart, CurvesAreToldApartWithoutColor) {
  for (const bool utf8 : {false, true}) {
    const Chart chart =
        make_chart({falling("x", 200, 3, 10), falling("y", 200, 3, 10), falling("z", 200, 4, 100)},
                   XAxis::kSteps, 0);
    const std::string text = text_chart(chart, {.columns = 80, .utf8 = utf8});
    const std::string drawing = drawing_of(text.substr(text.find('\n')));
    for (const char* letter : {"a", "b", "c", "A", "B", "C"}) {
      EXPECT_THAT(drawing, HasSubstr(letter)) << text;
    }
    EXPECT_THAT(text, HasSubstr("\nb y, training: last 1.0150\n"));
    EXPECT_THAT(text, HasSubstr("\nC z, validation: last 1.5200, lowest 1.5200\n"));
  }
}

TEST(TextChart, ColorsChangeNothingElse) {
  const Chart chart =
      make_chart({falling("x", 200, 3, 10), falling("y", 200, 9, 0)}, XAxis::kSteps, 0);
  for (const bool utf8 : {false, true}) {
    const std::string plain = text_chart(chart, {.utf8 = utf8});
    const std::string colors = text_chart(chart, {.utf8 = utf8, .color = true});
    EXPECT_THAT(plain, Not(HasSubstr("\x1b")));
    EXPECT_THAT(colors, HasSubstr("\x1b[94m"));
    EXPECT_THAT(colors, HasSubstr("\x1b[33m"));
    EXPECT_EQ(std::regex_replace(colors, std::regex("\x1b\\[[0-9]+m"), ""), plain);
  }
}

TEST(TextChart, GapsStayEmpty) {
  RunMetrics run{.name = "r"};
  for (int i = 1; i <= 60; ++i) {
    run.steps.push_back({.step = i, .loss = i > 20 && i <= 40 ? std::nan("") : 2.0});
  }
  const std::vector<std::string> lines =
      lines_of(text_chart(make_chart({run}, XAxis::kSteps, 0), {.columns = 66}));
  const auto drawn = std::find_if(lines.begin(), lines.end(), [](const std::string& line) {
    return line.find("aa") != std::string::npos;
  });
  ASSERT_NE(drawn, lines.end());
  EXPECT_TRUE(std::regex_search(*drawn, std::regex("a{15,} {15,}a{15,}"))) << *drawn;
}

TEST(TextChart, Utf8IsWhatTheLocaleSays) {
  EXPECT_TRUE(is_utf8_locale({"", "", "en_US.UTF-8"}));
  EXPECT_TRUE(is_utf8_locale({"", "C.utf8", "POSIX"}));
  EXPECT_FALSE(is_utf8_locale({"C", "C.UTF-8", "C.UTF-8"}));
  EXPECT_FALSE(is_utf8_locale({"", "", "de_DE.ISO-8859-1"}));
  EXPECT_FALSE(is_utf8_locale({"", "", ""}));
}

}  // namespace
}  // namespace tapestry::plot
