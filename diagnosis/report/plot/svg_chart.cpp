#include "diagnosis/report/plot/svg_chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <vector>

#include "autograd/tensor/error.h"
#include "diagnosis/report/plot/letters.h"

namespace tapestry::plot {
namespace {

// Pixels. Letters are taken to be 0.6 of their size wide, which those of usual fonts are below.
constexpr int kWidth = 960;
constexpr int kPlotHeight = 460;
constexpr int kLeft = 76;
constexpr int kRight = 24;
constexpr int kTop = 16;
constexpr int kBelow = 60;  // labels and title of the x axis
constexpr int kLine = 22;   // a line of the legend
constexpr int kNoteLine = 18;
constexpr int kFont = 14;
constexpr double kLetter = 0.6 * kFont;
constexpr int kSample = 36;  // the line in the legend
constexpr int kGap = 24;     // between entries of the legend
constexpr int kMarksOfACurve = 8;
constexpr int kPlotWidth = kWidth - kLeft - kRight;

constexpr std::array<const char*, 7> kColors = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                "#000000", "#e69f00", "#56b4e9"};

// Shapes of about 8 pixels around a place, as paths.
constexpr std::array<const char*, 8> kShapes = {
    "m-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z",   // circle
    "m-3.5,-3.5h7v7h-7z",                    // square
    "m0,-4.5l4.5,8h-9z",                     // triangle
    "m0,-5l5,5l-5,5l-5,-5z",                 // diamond
    "m0,4.5l4.5,-8h-9z",                     // triangle that stands on its tip
    "m-4,-4l8,8m0,-8l-8,8",                  // x
    "m0,-5v10m-5,-5h10",                     // plus
    "m-4.5,0l2.2,-4h4.6l2.2,4l-2.2,4h-4.6z"  // hexagon
};

// A place in pixels, to a hundredth.
std::string pixels(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f", value == 0 ? 0.0 : value);
  return text.data();
}

std::string text_element(double x, double y, const char* attributes, const std::string& text) {
  return concat("<text x=\"", pixels(x), "\" y=\"", pixels(y), "\"", attributes, ">",
                escape_markup(text), "</text>");
}

struct Style {
  const char* color;
  const char* shape;
};

Style style_of(const Curve& curve) {
  const auto run = static_cast<size_t>(curve.run);
  return {kColors[run % kColors.size()], kShapes[run % kShapes.size()]};
}

// A mark is hollow for validation, so that both curves of a run differ also where they are short.
std::string mark(const Curve& curve, double x, double y) {
  const Style style = style_of(curve);
  return concat("<path d=\"M", pixels(x), ",", pixels(y), style.shape, "\" fill=\"",
                curve.validation ? "#ffffff" : style.color, "\" stroke-dasharray=\"none\"/>\n");
}

const char* dashes(const Curve& curve) {
  return curve.validation ? " stroke-dasharray=\"7 4\"" : "";
}

// The legend: entries side by side, as many in a line as fit.
struct Legend {
  std::string elements;
  int lines = 1;
};

Legend make_legend(const Chart& chart) {
  Legend legend;
  double x = kLeft;
  for (const Curve& curve : chart.curves) {
    constexpr int kMostLetters = static_cast<int>((kPlotWidth - kSample - 8) / kLetter);
    const std::string label = cut(printable(curve.label), kMostLetters, /*keep_end=*/true);
    const double width = kSample + 8 + kLetter * columns_of(label);
    if (x > kLeft && x + width > kWidth - kRight) {
      x = kLeft;
      ++legend.lines;
    }
    const double y = kTop + kLine * (legend.lines - 0.5);
    legend.elements +=
        concat("<g stroke=\"", style_of(curve).color, "\" stroke-width=\"1.75\"><line x1=\"",
               pixels(x), "\" y1=\"", pixels(y), "\" x2=\"", pixels(x + kSample), "\" y2=\"",
               pixels(y), "\"", dashes(curve), "/>", mark(curve, x + kSample / 2.0, y), "</g>",
               text_element(x + kSample + 8, y + 5, "", label), "\n");
    x += width + kGap;
  }
  return legend;
}

// Where the picture has what.
struct Frame {
  Range x;
  Range y;
  double top = 0;
  double height = kPlotHeight;

  double x_of(double value) const { return kLeft + x.part(value) * kPlotWidth; }
  double y_of(double value) const { return top + (1 - y.part(value)) * height; }
  double bottom() const { return top + height; }
};

std::string grid_line(double x1, double y1, double x2, double y2) {
  return concat("<line x1=\"", pixels(x1), "\" y1=\"", pixels(y1), "\" x2=\"", pixels(x2),
                "\" y2=\"", pixels(y2), "\" stroke=\"#dddddd\"/>");
}

std::string axes(const Chart& chart, const Frame& frame) {
  constexpr int kMostXTicks = 11;
  constexpr int kMostYTicks = 9;
  std::string out = "<g class=\"x ticks\" text-anchor=\"middle\">\n";
  for (const Tick& tick : make_ticks(frame.x, kMostXTicks, chart.whole_x)) {
    const double x = frame.x_of(tick.value);
    out += grid_line(x, frame.top, x, frame.bottom()) +
           text_element(x, frame.bottom() + 20, "", tick.label) + "\n";
  }
  out += "</g>\n<g class=\"y ticks\" text-anchor=\"end\">\n";
  for (const Tick& tick : make_ticks(frame.y, kMostYTicks)) {
    const double y = frame.y_of(tick.value);
    out += grid_line(kLeft, y, kWidth - kRight, y) +
           text_element(kLeft - 8, y + 5, "", tick.label) + "\n";
  }
  const double middle = frame.top + frame.height / 2.0;
  const std::string turned =
      concat(" text-anchor=\"middle\" transform=\"rotate(-90 18 ", pixels(middle), ")\"");
  return out + "</g>\n" +
         concat("<path d=\"M", kLeft, ",", pixels(frame.top), "V", pixels(frame.bottom()), "H",
                kWidth - kRight, "\" fill=\"none\" stroke=\"#444444\"/>\n") +
         text_element(kLeft + kPlotWidth / 2.0, frame.bottom() + 44, " text-anchor=\"middle\"",
                      chart.x_title) +
         "\n" + text_element(18, middle, turned.c_str(), chart.y_title) + "\n";
}

std::string lines(const Points& points, const Frame& frame, const char* attributes) {
  std::string out;
  for (const Points& part : without_gaps(points)) {
    if (part.size() == 1) {
      out += concat("<circle cx=\"", pixels(frame.x_of(part[0].x)), "\" cy=\"",
                    pixels(frame.y_of(part[0].y)), "\" r=\"1.5\"", attributes, "/>\n");
      continue;
    }
    out += "<polyline points=\"";
    const char* separator = "";
    for (const Point& point : thinned(part, frame.x, kPlotWidth)) {
      out += concat(separator, pixels(frame.x_of(point.x)), ",", pixels(frame.y_of(point.y)));
      separator = " ";
    }
    out += concat("\"", attributes, "/>\n");
  }
  return out;
}

// Of a validation curve each loss, unless there are very many; of a training curve a few, at places
// that differ from curve to curve.
std::string marks(const Curve& curve, size_t index, const Frame& frame) {
  constexpr size_t kMost = 60;
  Points points;
  for (const Points& part : without_gaps(curve.points)) {
    points.insert(points.end(), part.begin(), part.end());
  }
  const bool all = curve.validation && points.size() <= kMost;
  const double distance = all ? 0 : frame.x.length() / kMarksOfACurve;
  constexpr size_t kPlaces = 5;
  double next = frame.x.low + distance * (0.5 + static_cast<double>(index % kPlaces)) / kPlaces;
  std::string out;
  for (const Point& point : points) {
    if (all || point.x >= next) {
      out += mark(curve, frame.x_of(point.x), frame.y_of(point.y));
      while (!all && next <= point.x) {
        next += distance;
      }
    }
  }
  return out;
}

// What was smoothed, of all curves, so that it covers none of them.
std::string raw_element(const Chart& chart, const Frame& frame) {
  std::string out = "<g class=\"raw\" fill=\"none\" stroke-opacity=\"0.3\">\n";
  for (const Curve& curve : chart.curves) {
    out += lines(curve.raw, frame, concat(" stroke=\"", style_of(curve).color, "\"").c_str());
  }
  return out + "</g>\n";
}

std::string curve_element(const Chart& chart, size_t index, const Frame& frame) {
  const Curve& curve = chart.curves[index];
  std::string out =
      concat("<g class=\"curve\" stroke=\"", style_of(curve).color,
             "\" stroke-width=\"1.75\" stroke-linejoin=\"round\" fill=\"none\"><title>",
             escape_markup(curve.label), "</title>\n");
  out += lines(curve.points, frame, dashes(curve));
  return out + marks(curve, index, frame) + "</g>\n";
}

// A chart with its legend and notes, from y = 0 down.
struct Panel {
  std::string elements;
  double height = 0;
};

Panel make_panel(const Chart& chart, double plot_height) {
  constexpr double kMargin = 0.03;
  const Legend legend = make_legend(chart);
  const Frame frame{.x = chart.x,
                    .y = range_of(losses_of(chart, /*raw=*/true), kMargin),
                    .top = static_cast<double>(kTop + kLine * legend.lines + 10),
                    .height = plot_height};
  const double notes_top = frame.bottom() + kBelow;
  Panel panel{.height = notes_top + kNoteLine * static_cast<double>(chart.notes.size()) + 4};
  std::string& out = panel.elements;
  out += "<g class=\"legend\">\n" + legend.elements + "</g>\n" + axes(chart, frame);
  out += raw_element(chart, frame);
  // Training losses are noisy: the curves of validation go on top.
  for (const bool validation : {false, true}) {
    for (size_t i = 0; i < chart.curves.size(); ++i) {
      if (chart.curves[i].validation == validation) {
        out += curve_element(chart, i, frame);
      }
    }
  }
  for (size_t i = 0; i < chart.notes.size(); ++i) {
    const double y = notes_top + kNoteLine * (static_cast<double>(i) + 0.5);
    out += text_element(kLeft, y, " font-size=\"12\" fill=\"#555555\"", chart.notes[i]) + "\n";
  }
  return panel;
}

std::string document(const std::string& elements, double height) {
  return concat(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" "
      "width=\"",
      kWidth, "\" height=\"", height, "\" viewBox=\"0 0 ", kWidth, " ", height,
      "\" font-family=\"sans-serif\" font-size=\"", kFont,
      "\" fill=\"#222222\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n", elements,
      "</svg>\n");
}

}  // namespace

std::string svg_chart(const Chart& chart) {
  const Panel panel = make_panel(chart, kPlotHeight);
  return document(panel.elements, panel.height);
}

std::string svg_charts(const std::vector<Chart>& charts) {
  constexpr double kLower = 0.55;
  std::string elements;
  double height = 0;
  for (const Chart& chart : charts) {
    const Panel panel = make_panel(chart, kLower * kPlotHeight);
    elements += concat("<g class=\"panel\" transform=\"translate(0 ", pixels(height), ")\">\n",
                       panel.elements, "</g>\n");
    height += panel.height;
  }
  return document(elements, height);
}

}  // namespace tapestry::plot
