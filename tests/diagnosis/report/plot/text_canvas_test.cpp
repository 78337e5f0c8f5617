#include "diagnosis/report/plot/text_canvas.h"

#include <gtest/gtest.h>

namespace tapestry::plot {
namespace {

const TextStyle kBraille{.utf8 = true};
const TextStyle kAscii{};

TEST(TextCanvas, BrailleHasEightDotsACell) {
  TextCanvas canvas(3, 2, kBraille);
  EXPECT_EQ(canvas.dots_across(), 6);
  EXPECT_EQ(canvas.dots_down(), 8);
  canvas.line(0, 0, 5, 0, {});
  canvas.line(2, 4, 2, 7, {});
  canvas.line(5, 7, 5, 7, {});
  EXPECT_EQ(canvas.row(0), "⠉⠉⠉");
  EXPECT_EQ(canvas.row(1), " ⡇⢀");
  TextCanvas diagonal(2, 1, kBraille);
  diagonal.line(3, 3, 0, 0, {});
  EXPECT_EQ(diagonal.row(0), "⠑⢄");
}

TEST(TextCanvas, AsciiHasTheLettersOfTheCurves) {
  TextCanvas canvas(4, 3, kAscii);
  canvas.line(0, 0, 3, 2, {.letter = 'a'});
  canvas.line(0, 2, 3, 2, {.letter = 'b'}, 1, 2);
  EXPECT_EQ(canvas.row(0), "a   ");
  EXPECT_EQ(canvas.row(1), " aa ");
  EXPECT_EQ(canvas.row(2), "bbbb");
}

// Two curves on one line: each has every other cell.
TEST(TextCanvas, CurvesShareCells) {
  TextCanvas canvas(6, 1, kAscii);
  canvas.line(0, 0, 5, 0, {.letter = 'a'}, 0, 2);
  canvas.line(0, 0, 5, 0, {.letter = 'b'}, 1, 2);
  EXPECT_EQ(canvas.row(0), "ababab");
}

TEST(TextCanvas, MarksStandOverLinesOncePerCell) {
  for (const TextStyle& style : {kBraille, kAscii}) {
    TextCanvas canvas(3, 1, style);
    const int middle = canvas.dots_across() / 2;
    EXPECT_TRUE(canvas.mark(middle, 0, {.letter = 'A'}));
    EXPECT_FALSE(canvas.mark(middle, 0, {.letter = 'B'}));
    EXPECT_FALSE(canvas.mark(canvas.dots_across(), 0, {.letter = 'C'}));
    EXPECT_FALSE(canvas.mark(0, -1, {.letter = 'C'}));
    EXPECT_EQ(canvas.row(0), " A ");
  }
}

TEST(TextCanvas, WhatLiesOutsideIsLeftOut) {
  TextCanvas canvas(3, 1, kAscii);
  canvas.line(-5, 0, 10, 0, {.letter = 'a'});
  canvas.line(1, -9, 1, -2, {.letter = 'b'});
  EXPECT_EQ(canvas.row(0), "aaa");
}

TEST(TextCanvas, ColorsOnlyWhereAsked) {
  for (const bool color : {false, true}) {
    TextCanvas canvas(4, 1, {.color = color});
    canvas.line(0, 0, 1, 0, {.letter = 'a', .color = 0});
    canvas.line(3, 0, 3, 0, {.letter = 'b', .color = 1});
    EXPECT_EQ(canvas.row(0), color ? "\x1b[94maa\x1b[0m \x1b[33mb\x1b[0m" : "aa b");
  }
  EXPECT_EQ(colored("a", 6, {.color = true}), colored("a", 0, {.color = true}));
}

}  // namespace
}  // namespace tapestry::plot
