#include "parallel_core/training/log/terminal.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>

namespace tapestry::terminal_test {
namespace {

TEST(WrapText, BetweenWords) {
  EXPECT_EQ(wrap_text("one two three four five", 30), "one two three four five");
  EXPECT_EQ(wrap_text("one two three four five", 23), "one two three four five");
  EXPECT_EQ(wrap_text("one two three four five", 22), "one two three four\n  five");
  EXPECT_EQ(wrap_text("one two three four five\n\nsix\n", 22),
            "one two three four\n  five\n\nsix\n");
  EXPECT_EQ(wrap_text("", 40), "");
}

TEST(WrapText, LongWordsStandAlone) {
  const std::string path(40, 'y');
  EXPECT_EQ(wrap_text("x " + path + " z", 20), "x\n  " + path + "\n  z");
  EXPECT_EQ(wrap_text(path, 20), path);
}

// Behind a label the text keeps its column; otherwise lines hang by two.
TEST(WrapText, LinesHang) {
  EXPECT_EQ(wrap_text("data       one two three four", 24),
            "data       one two three\n           four");
  EXPECT_EQ(wrap_text("    one two three four five", 20), "    one two three\n      four five");
  EXPECT_EQ(wrap_text("  - one two three four", 20), "  - one two three\n    four");
  const std::string row = "  key  " + std::string(30, 'a') + " " + std::string(20, 'b');
  EXPECT_EQ(wrap_text(row, 44),
            "  key  " + std::string(30, 'a') + "\n       " + std::string(20, 'b'));
}

TEST(WrapText, Margins) {
  EXPECT_EQ(wrap_text("one two three four five six", 30, {.first = 12, .rest = 5}),
            "one two three four\n       five six");
  EXPECT_EQ(wrap_text("one\ntwo", 40, {.first = 12, .rest = 5}), "one\n     two");
}

TEST(WrapText, EveryWidthKeepsTheWords) {
  const std::string text =
      "train: Epoch:0, Step:5, Loss: 10.3, Learning_rate: (1.2e-06,1.2e-06,), Time: 1403.24 ms\n"
      "  - a lower rate  or another one";
  const auto words = [](const std::string& lines) {
    std::istringstream stream(lines);
    std::string all;
    for (std::string word; stream >> word;) {
      all += word + " ";
    }
    return all;
  };
  for (int columns = 0; columns < 100; ++columns) {
    const std::string wrapped = wrap_text(text, columns);
    EXPECT_EQ(words(wrapped), words(text)) << columns;
    std::istringstream lines(wrapped);
    for (std::string line; columns >= 40 && std::getline(lines, line);) {
      EXPECT_LE(line.size(), static_cast<size_t>(columns)) << line;
    }
  }
}

TEST(WrapText, CountsLettersNotBytes) {
  const std::string umlauts =
      "\u00e4\u00f6\u00fc \u00e4\u00f6\u00fc \u00e4\u00f6\u00fc \u00e4\u00f6\u00fc "
      "\u00e4\u00f6\u00fc \u00e4";
  EXPECT_EQ(wrap_text(umlauts, 21), umlauts);  // 39 bytes
  const std::string chinese = "\u4f60\u597d\u4f60\u597d\u4f60 \u597d\u4f60\u597d\u4f60\u597d";
  EXPECT_EQ(wrap_text(chinese, 21), chinese);
  EXPECT_NE(wrap_text(chinese, 20), chinese);
}

TEST(HarmlessText, LeavesNothingThatMovesTheCursor) {
  EXPECT_EQ(harmless_text("a\tb\n\u00e4\u4f60"), "a\tb\n\u00e4\u4f60");
  EXPECT_EQ(harmless_text("\033[2J\r\a\x7f"), "\ufffd[2J\ufffd\ufffd\ufffd");
  EXPECT_EQ(harmless_text("\u009b"
                          "2J\xff"),
            "\ufffd"
            "2J\ufffd");
}

}  // namespace
}  // namespace tapestry::terminal_test
