// A drawing made of letters: each cell has dots of braille, or one ASCII letter.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tapestry::plot {

/// How a terminal, or a file, can be written to.
struct TextStyle {
  int columns = 80;
  bool utf8 = false;   ///< braille and box letters, else ASCII
  bool color = false;  ///< ANSI colours
};

/// A curve as it is written: its letter, and the place of its colour among those that there are.
struct Pen {
  char letter = '*';
  int color = 0;
};

/// The text in one of six colours of a terminal, taken in turn, or as it is.
std::string colored(const std::string& text, int color, const TextStyle& style);

class TextCanvas {
 public:
  TextCanvas(int columns, int rows, const TextStyle& style);

  /// Dots per cell: 2 x 4 of braille, or 1 x 1.
  int dots_across() const { return columns_ * (style_.utf8 ? 2 : 1); }
  int dots_down() const { return rows_ * (style_.utf8 ? 4 : 1); }

  /// A line between two dots, both included; (0, 0) is the upper left one. What lies outside is
  /// left out. In ASCII it consists of the letters of the pen, and `turn` of `turns` pens share the
  /// cells that more than one goes through; in braille the letters are set by mark().
  void line(int x0, int y0, int x1, int y1, const Pen& pen, int turn = 0, int turns = 1);

  /// Puts the letter of the pen in the cell of a dot, unless mark() put one there before.
  /// False if so, or if it lies outside.
  bool mark(int x, int y, const Pen& pen);

  /// A row of cells from the top, as wide as the canvas.
  std::string row(int index) const;

 private:
  struct Cell {
    uint8_t dots = 0;  // of a braille letter: bits as in its code
    char letter = 0;
    bool marked = false;
    int color = 0;
  };
  Cell* cell_of(int x, int y);
  void dot(int x, int y, const Pen& pen, int turn, int turns);

  int columns_;
  int rows_;
  TextStyle style_;
  std::vector<Cell> cells_;
};

}  // namespace tapestry::plot
