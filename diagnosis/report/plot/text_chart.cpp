#include "diagnosis/report/plot/text_chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

#include "autograd/tensor/error.h"
#include "diagnosis/report/plot/letters.h"

namespace tapestry::plot {
namespace {

constexpr int kColumnsPerTick = 12;
constexpr int kRowsPerTick = 3;
constexpr int kMarkDistance = 16;  // columns between the letters of a curve

struct TextFrame {
  Range x;
  Range y;
  int label_columns = 0;  // left of the axis
  int columns = 0;
  int rows = 0;
};

Pen pen_of(const Curve& curve) {
  return {static_cast<char>((curve.validation ? 'A' : 'a') + curve.run),
          static_cast<int>(curve.run)};
}

// A fifth of the width, so that the picture fits a terminal of the usual 24 lines.
int rows_for(int columns) { return std::clamp(columns / 5, 8, 20); }

class Drawing {
 public:
  Drawing(const TextFrame& frame, const TextStyle& style, int curves)
      : frame_(frame), style_(style), curves_(curves), canvas_(frame.columns, frame.rows, style) {}

  void draw(const Curve& curve, int index) {
    for (const Points& part : without_gaps(curve.points)) {
      for (size_t i = 0; i < part.size(); ++i) {
        const Point& from = part[i == 0 ? 0 : i - 1];
        canvas_.line(x_of(from), y_of(from), x_of(part[i]), y_of(part[i]), pen_of(curve), index,
                     curves_);
      }
    }
  }

  // Letters on the curves: at each point of those that have few, else at intervals, other ones for
  // each curve. Curves on the same places take turns, those with the fewest points first.
  void mark(const std::vector<Curve>& curves) {
    std::vector<Place> sparse;
    for (const Curve& curve : curves) {
      Points points = drawn(curve);
      if (is_sparse(points)) {
        sparse.push_back({&curve, std::move(points)});
      }
    }
    std::stable_sort(sparse.begin(), sparse.end(), [](const Place& one, const Place& other) {
      return one.points.size() < other.points.size();
    });
    for (bool any = true; any;) {
      any = false;
      for (Place& place : sparse) {
        any |= mark_next(place);
      }
    }
    for (size_t i = 0; i < curves.size(); ++i) {
      mark_at_intervals(curves[i], static_cast<int>(i));
    }
  }

  const TextCanvas& canvas() const { return canvas_; }

 private:
  struct Place {
    const Curve* curve;
    Points points;
    size_t next = 0;
  };

  // Marks the next point of a curve that is free; false if there is none.
  bool mark_next(Place& place) {
    while (place.next < place.points.size()) {
      if (mark(place.points[place.next++], *place.curve)) {
        return true;
      }
    }
    return false;
  }
  void mark_at_intervals(const Curve& curve, int index) {
    const Points points = drawn(curve);
    // In ASCII the curve consists of letters anyway.
    if (!style_.utf8 || is_sparse(points)) {
      return;
    }
    int next = kMarkDistance * index / curves_ + 1;
    for (const Point& point : points) {
      const int column = x_of(point) / dots_per_column();
      if (column >= next && mark(point, curve)) {
        next = column + kMarkDistance;
      }
    }
  }
  bool is_sparse(const Points& points) const {
    return static_cast<int>(points.size()) * 4 <= frame_.columns;
  }
  static Points drawn(const Curve& curve) {
    Points points;
    for (const Points& part : without_gaps(curve.points)) {
      points.insert(points.end(), part.begin(), part.end());
    }
    return points;
  }
  bool mark(const Point& point, const Curve& curve) {
    return canvas_.mark(x_of(point), y_of(point), pen_of(curve));
  }
  int dots_per_column() const { return style_.utf8 ? 2 : 1; }
  int x_of(const Point& point) const {
    return static_cast<int>(std::lround(frame_.x.part(point.x) * (canvas_.dots_across() - 1)));
  }
  int y_of(const Point& point) const {
    return static_cast<int>(std::lround((1 - frame_.y.part(point.y)) * (canvas_.dots_down() - 1)));
  }

  TextFrame frame_;
  TextStyle style_;
  int curves_;
  TextCanvas canvas_;
};

// The cell of a tick.
int cell_of(double part, int cells) {
  return std::clamp(static_cast<int>(std::lround(part * (cells - 1))), 0, cells - 1);
}

std::string padded(const std::string& text, int columns) {
  return std::string(static_cast<size_t>(std::max(0, columns - columns_of(text))), ' ') + text;
}

std::string picture_rows(const TextFrame& frame,
                         const TextCanvas& canvas,
                         const std::vector<Tick>& ticks,
                         const TextStyle& style) {
  std::vector<std::string> labels(static_cast<size_t>(frame.rows));
  for (const Tick& tick : ticks) {
    labels[static_cast<size_t>(cell_of(1 - frame.y.part(tick.value), frame.rows))] = tick.label;
  }
  std::string text;
  for (int row = 0; row < frame.rows; ++row) {
    const std::string& label = labels[static_cast<size_t>(row)];
    const char* edge = style.utf8 ? (label.empty() ? "│" : "┤") : (label.empty() ? "|" : "+");
    std::string cells = canvas.row(row);
    cells.erase(cells.find_last_not_of(' ') + 1);
    text += padded(label, frame.label_columns) + edge + cells + "\n";
  }
  return text;
}

// The axis below with its ticks, their labels and the title.
std::string x_axis_rows(const TextFrame& frame,
                        const std::vector<Tick>& ticks,
                        const std::string& title,
                        const TextStyle& style) {
  std::vector<bool> ticked(static_cast<size_t>(frame.columns));
  std::string labels;
  for (const Tick& tick : ticks) {
    const int column = cell_of(frame.x.part(tick.value), frame.columns);
    ticked[static_cast<size_t>(column)] = true;
    const int width = columns_of(tick.label);
    // Centred below its tick, as far as the line goes.
    const int start =
        std::max(0, std::min(frame.label_columns + 1 + column - width / 2, style.columns - width));
    if (start > static_cast<int>(labels.size()) || labels.empty()) {
      labels += std::string(static_cast<size_t>(start) - labels.size(), ' ') + tick.label;
    }
  }
  std::string text = padded(style.utf8 ? "└" : "+", frame.label_columns + 1);
  for (const bool tick : ticked) {
    text += style.utf8 ? (tick ? "┬" : "─") : (tick ? "+" : "-");
  }
  const std::string shown = cut(title, style.columns);
  return text + "\n" + cut(labels, style.columns) + "\n" +
         padded(shown, std::min(style.columns, frame.label_columns + 1 + frame.columns)) + "\n";
}

std::string loss_text(double loss) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), std::abs(loss) < 1e4 ? "%.4f" : "%.4g", loss);
  return text.data();
}

// "last 1.8812, lowest 1.8770"
std::string values_text(const Curve& curve) {
  const std::vector<Points> parts = without_gaps(curve.points);
  if (parts.empty()) {
    return "none finite";
  }
  std::string text = concat("last ", loss_text(parts.back().back().y));
  if (curve.validation) {
    double lowest = parts.back().back().y;
    for (const Points& part : parts) {
      for (const Point& point : part) {
        lowest = std::min(lowest, point.y);
      }
    }
    text += concat(", lowest ", loss_text(lowest));
  }
  return text;
}

std::string legend_row(const Curve& curve, const TextStyle& style) {
  const Pen pen = pen_of(curve);
  const std::string values = values_text(curve);
  const std::string letter(1, pen.letter);
  const std::string label = printable(curve.label, !style.utf8);
  const int left = style.columns - columns_of(values) - 5;  // of "a " and ":  "
  constexpr int kShortest = 12;
  if (left < kShortest) {
    const std::string name = cut(concat("  ", label), style.columns, /*keep_end=*/true);
    return colored(letter, pen.color, style) + name.substr(1) + "\n" +
           cut("  " + values, style.columns) + "\n";
  }
  return colored(letter, pen.color, style) + " " + cut(label, left, /*keep_end=*/true) + ": " +
         values + "\n";
}

// A note, cut into lines between words.
std::string note_rows(const std::string& note, int columns) {
  std::string text;
  std::string line;
  size_t begin = 0;
  while (begin < note.size()) {
    const size_t end = std::min(note.find(' ', begin), note.size());
    const std::string word = note.substr(begin, end - begin);
    begin = end + 1;
    if (!line.empty() && columns_of(line) + 1 + columns_of(word) > columns) {
      text += cut(line, columns) + "\n";
      line = "  " + word;
    } else {
      line += (line.empty() ? "" : " ") + word;
    }
  }
  return text + cut(line, columns) + "\n";
}

// The curves between their axes.
std::string picture(const Chart& chart, const TextStyle& style) {
  constexpr double kMargin = 0.02;
  TextFrame frame{.x = chart.x, .y = range_of(losses_of(chart, /*raw=*/false), kMargin)};
  frame.rows = rows_for(style.columns);
  const std::vector<Tick> y_ticks = make_ticks(frame.y, std::max(4, frame.rows / kRowsPerTick + 1));
  for (const Tick& tick : y_ticks) {
    frame.label_columns = std::max(frame.label_columns, columns_of(tick.label));
  }
  frame.columns = style.columns - frame.label_columns - 1;
  const std::vector<Tick> x_ticks =
      make_ticks(frame.x, std::max(3, frame.columns / kColumnsPerTick), chart.whole_x);

  Drawing drawing(frame, style, static_cast<int>(chart.curves.size()));
  for (size_t i = 0; i < chart.curves.size(); ++i) {
    drawing.draw(chart.curves[i], static_cast<int>(i));
  }
  drawing.mark(chart.curves);
  return cut(chart.y_title, style.columns) + "\n" +
         picture_rows(frame, drawing.canvas(), y_ticks, style) +
         x_axis_rows(frame, x_ticks, chart.x_title, style);
}

}  // namespace

std::string text_chart(const Chart& chart, const TextStyle& style) {
  constexpr int kNarrowest = 20;
  std::string text = style.columns < kNarrowest ? "" : picture(chart, style);
  for (const Curve& curve : chart.curves) {
    text += legend_row(curve, style);
  }
  for (const std::string& note : chart.notes) {
    text += note_rows("note: " + printable(note, !style.utf8), style.columns);
  }
  return text;
}

}  // namespace tapestry::plot
