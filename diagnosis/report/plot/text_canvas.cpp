#include "diagnosis/report/plot/text_canvas.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "autograd/tensor/error.h"

namespace tapestry::plot {
namespace {

// U+2800 plus the dots, three bytes of UTF-8.
std::string braille(uint8_t dots) {
  return {static_cast<char>(0xE2), static_cast<char>(0xA0U | (dots >> 6U)),
          static_cast<char>(0x80U | (dots & 0x3FU))};
}

// Bits of the dots of a braille letter, by row and column.
constexpr std::array<std::array<uint8_t, 2>, 4> kDots = {
    {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}}};

}  // namespace

std::string colored(const std::string& text, int color, const TextStyle& style) {
  // Bright blue, yellow, magenta, cyan, red, green: all are legible on black and on white.
  constexpr std::array<int, 6> kColors = {94, 33, 35, 36, 31, 32};
  if (!style.color || text.empty()) {
    return text;
  }
  return concat("\x1b[", kColors[static_cast<size_t>(color) % kColors.size()], "m", text,
                "\x1b[0m");
}

TextCanvas::TextCanvas(int columns, int rows, const TextStyle& style)
    : columns_(columns),
      rows_(rows),
      style_(style),
      cells_(static_cast<size_t>(columns) * static_cast<size_t>(rows)) {}

TextCanvas::Cell* TextCanvas::cell_of(int x, int y) {
  if (x < 0 || y < 0 || x >= dots_across() || y >= dots_down()) {
    return nullptr;
  }
  const int column = style_.utf8 ? x / 2 : x;
  const int row = style_.utf8 ? y / 4 : y;
  return &cells_[static_cast<size_t>(row) * static_cast<size_t>(columns_) +
                 static_cast<size_t>(column)];
}

void TextCanvas::dot(int x, int y, const Pen& pen, int turn, int turns) {
  Cell* cell = cell_of(x, y);
  if (cell == nullptr) {
    return;
  }
  if (style_.utf8) {
    cell->dots |= kDots[static_cast<size_t>(y % 4)][static_cast<size_t>(x % 2)];
    cell->color = pen.color;
  } else if (cell->letter == 0 || x % turns == turn) {
    cell->letter = pen.letter;
    cell->color = pen.color;
  }
}

void TextCanvas::line(int x0, int y0, int x1, int y1, const Pen& pen, int turn, int turns) {
  const int steps = std::max({std::abs(x1 - x0), std::abs(y1 - y0), 1});
  for (int i = 0; i <= steps; ++i) {
    const double part = static_cast<double>(i) / steps;
    dot(static_cast<int>(std::lround(x0 + part * (x1 - x0))),
        static_cast<int>(std::lround(y0 + part * (y1 - y0))), pen, turn, turns);
  }
}

bool TextCanvas::mark(int x, int y, const Pen& pen) {
  Cell* cell = cell_of(x, y);
  if (cell == nullptr || cell->marked) {
    return false;
  }
  *cell = {.dots = cell->dots, .letter = pen.letter, .marked = true, .color = pen.color};
  return true;
}

std::string TextCanvas::row(int index) const {
  const Cell* cells = &cells_[static_cast<size_t>(index) * static_cast<size_t>(columns_)];
  std::string text;
  for (int i = 0; i < columns_;) {
    const Cell& first = cells[i];
    std::string same;  // cells of one colour
    for (; i < columns_; ++i) {
      const Cell& cell = cells[i];
      const bool blank = cell.letter == 0 && cell.dots == 0;
      const bool first_blank = first.letter == 0 && first.dots == 0;
      if (blank != first_blank || (!blank && cell.color != first.color)) {
        break;
      }
      same += cell.letter != 0 ? std::string(1, cell.letter) : blank ? " " : braille(cell.dots);
    }
    text += same.front() == ' ' ? same : colored(same, first.color, style_);
  }
  return text;
}

}  // namespace tapestry::plot
