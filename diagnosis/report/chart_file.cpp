#include "diagnosis/report/chart_file.h"

#include <array>
#include <cmath>
#include <cstdio>

#include "autograd/tensor/error.h"
#include "diagnosis/report/chart_drawing.h"
#include "diagnosis/report/plot/letters.h"

namespace tapestry::report {
namespace chart_file {
namespace {

using plot::Point;
using plot::Points;
using plot::Tick;

// Pixels. Letters are taken to be 0.6 of their size wide, which those of usual fonts are below.
constexpr int kPageWidth = 960;
constexpr int kLeft = 76;
constexpr int kRight = 24;
constexpr int kTop = 16;
constexpr int kBelow = 60;  // labels and title of the x axis
constexpr int kLegendLine = 22;
constexpr int kNoteLine = 18;
constexpr int kFont = 14;
constexpr double kLetter = 0.6 * kFont;
constexpr int kSample = 36;  // the line in the legend
constexpr int kGap = 24;     // between entries of the legend
constexpr int kAreaWidth = kPageWidth - kLeft - kRight;
constexpr int kPart = 100;  // of a pixel, in the area

constexpr std::array<const char*, 7> kColors = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                "#000000", "#e69f00", "#56b4e9"};

// Shapes of about 8 pixels around a place, in hundredths of them.
constexpr std::array<const char*, 8> kShapes = {
    "m-400,0a400,400 0 1,0 800,0a400,400 0 1,0 -800,0z",  // circle
    "m-350,-350h700v700h-700z",                           // square
    "m0,-450l450,800h-900z",                              // triangle
    "m0,-500l500,500l-500,500l-500,-500z",                // diamond
    "m0,450l450,-800h-900z",                              // triangle that stands on its tip
    "m-400,-400l800,800m0,-800l-800,800",                 // x
    "m0,-500v1000m-500,-500h1000",                        // plus
    "m-450,0l220,-400h460l220,400l-220,400h-460z"         // hexagon
};

std::string pixels(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f", value == 0 ? 0.0 : value);
  return text.data();
}

std::string text_element(double x,
                         double y,
                         const std::string& attributes,
                         const std::string& text) {
  return concat("<text x=\"", pixels(x), "\" y=\"", pixels(y), "\"", attributes, ">",
                plot::escape_markup(text), "</text>\n");
}

// A <g> whose unit is a hundredth of a pixel.
std::string area(double left, double top) {
  return concat("<g class=\"area\" transform=\"translate(", pixels(left), " ", pixels(top),
                ") scale(0.01)\" fill=\"none\" stroke-linejoin=\"round\" "
                "stroke-linecap=\"round\">\n");
}

bool is_faint(const ChartCurve& curve) { return curve.kind == LineKind::kFaint; }

std::string stroke_of(const ChartCurve& curve) {
  return concat(" stroke=\"", kColors[curve.run % kColors.size()], "\" stroke-width=\"",
                is_faint(curve) ? kPart : 175, "\"",
                is_faint(curve)                 ? " stroke-opacity=\"0.3\""
                : curve.kind == LineKind::kDots ? " stroke-dasharray=\"700 400\""
                                                : "");
}

// Hollow on curves of few points, so that a run's curves differ also where they are short.
std::string mark_on(const ChartCurve& curve, double x, double y) {
  return concat("<path class=\"mark\" d=\"M", coordinate(x), ",", coordinate(y),
                kShapes[curve.run % kShapes.size()], "\" fill=\"",
                curve.kind == LineKind::kDots ? "#ffffff" : kColors[curve.run % kColors.size()],
                "\" stroke-dasharray=\"none\"/>\n");
}

// At each of few points; else at a few places, which differ from curve to curve.
std::string marks_on(const ChartCurve& curve, size_t index, const Places& places) {
  constexpr size_t kMost = 60;
  constexpr int kMarksOfACurve = 8;
  constexpr size_t kPlaces = 5;
  const bool all = curve.kind == LineKind::kDots && curve.points.size() <= kMost;
  const plot::Range& x = places.x_range();
  const double distance = all ? 0 : x.length() / kMarksOfACurve;
  double next = x.low + distance * (0.5 + static_cast<double>(index % kPlaces)) / kPlaces;
  std::string out;
  for (const Point& point : curve.points) {
    if (std::isfinite(point.y) && (all || point.x >= next)) {
      out += mark_on(curve, places.x(point.x), places.y(point.y));
      while (!all && next <= point.x) {
        next += distance;
      }
    }
  }
  return out;
}

// Entries side by side, as many in a line as fit.
struct Legend {
  std::string elements;
  int lines = 1;
};

Legend legend_of(const LineChart& chart) {
  Legend legend;
  double x = kLeft;
  for (const ChartCurve& curve : chart.lines) {
    if (is_faint(curve)) {
      continue;
    }
    constexpr int kMostLetters = static_cast<int>((kAreaWidth - kSample - 8) / kLetter);
    const std::string label = plot::cut(plot::printable(curve_label(curve)), kMostLetters);
    const double width = kSample + 8 + kLetter * plot::columns_of(label);
    if (x > kLeft && x + width > kPageWidth - kRight) {
      x = kLeft;
      ++legend.lines;
    }
    const double y = kTop + kLegendLine * (legend.lines - 0.5);
    legend.elements += concat("<g transform=\"translate(", pixels(x), " ", pixels(y),
                              ") scale(0.01)\"", stroke_of(curve), "><path d=\"M0,0H",
                              kSample * kPart, "\"/>", mark_on(curve, kSample * kPart / 2.0, 0),
                              "</g>", text_element(x + kSample + 8, y + 5, "", label));
    x += width + kGap;
  }
  return legend;
}

// A chart from y = 0 down.
struct Panel {
  std::string elements;
  double height = 0;
};

Panel panel_of(const LineChart& chart, const std::string& x_title, int height) {
  constexpr int kMostXTicks = 11;
  const Legend legend = legend_of(chart);
  const ChartScale y = y_scale(chart);
  const Places places(chart.x, kAreaWidth * kPart, y, height * kPart);
  const double top = kTop + kLegendLine * legend.lines + 10;
  const double bottom = top + height;
  const std::vector<Tick> x_marks = plot::make_ticks(chart.x, kMostXTicks, chart.whole_x);
  const std::vector<Tick> y_marks = y_ticks(y);
  std::string out = "<g class=\"legend\">\n" + legend.elements + "</g>\n";
  out += "<g class=\"x ticks\" text-anchor=\"middle\">\n";
  for (const Tick& tick : x_marks) {
    out += text_element(kLeft + places.x(tick.value) / kPart, bottom + 20, "", tick.label);
  }
  out += "</g>\n<g class=\"y ticks\" text-anchor=\"end\">\n";
  for (const Tick& tick : y_marks) {
    out += text_element(kLeft - 8, top + places.y(tick.value) / kPart + 5, "", tick.label);
  }
  const std::string unit = unit_text(chart, y);
  const double middle = top + height / 2.0;
  out += "</g>\n" +
         text_element(kLeft + kAreaWidth / 2.0, bottom + 44, " text-anchor=\"middle\"", x_title) +
         text_element(
             18, middle,
             concat(" text-anchor=\"middle\" transform=\"rotate(-90 18 ", pixels(middle), ")\""),
             chart.title + (unit.empty() ? "" : ", " + unit));
  out += area(kLeft, top) + concat("<path class=\"grid\" stroke=\"#dddddd\" stroke-width=\"", kPart,
                                   "\" d=\"", grid_of(x_marks, y_marks, places), "\"/>\n");
  out += concat("<path stroke=\"#444444\" stroke-width=\"", kPart, "\" d=\"M0,0V",
                coordinate(places.height()), "H", coordinate(places.width()), "\"/>\n");
  if (const std::string marks = marks_of(chart, places, kAreaWidth); !marks.empty()) {
    out += concat("<path class=\"marks\" stroke=\"#b00020\" stroke-width=\"", 2 * kPart, "\" d=\"",
                  marks, "\"><title>no update</title></path>\n");
  }
  size_t index = 0;
  for (const ChartCurve* curve : in_drawing_order(chart)) {
    const char* kind = is_faint(*curve)                 ? "faint"
                       : curve->kind == LineKind::kDots ? "dots"
                                                        : "whole";
    out += concat("<g ", curve_attributes(*curve, kind), stroke_of(*curve), "><title>",
                  plot::escape_markup(curve_label(*curve)), "</title><path class=\"curve\" d=\"",
                  path_of(curve->points, places, kAreaWidth), "\"/>\n",
                  is_faint(*curve) ? "" : marks_on(*curve, index, places), "</g>\n");
    ++index;
  }
  return {out + "</g>\n", bottom + kBelow};
}

}  // namespace
}  // namespace chart_file

std::string curve_label(const ChartCurve& curve) {
  return curve.owner.empty() ? curve.name : curve.owner + ", " + curve.name;
}

std::string charts_svg(const std::vector<LineChart>& charts,
                       const std::string& x_title,
                       const std::vector<std::string>& notes) {
  using namespace chart_file;
  constexpr int kAlone = 460;
  constexpr int kOfSeveral = 250;
  std::string elements;
  double height = 0;
  for (const LineChart& chart : charts) {
    const Panel panel = panel_of(chart, x_title, charts.size() == 1 ? kAlone : kOfSeveral);
    elements += concat("<g class=\"panel\" transform=\"translate(0 ", pixels(height), ")\">\n",
                       panel.elements, "</g>\n");
    height += panel.height;
  }
  for (const std::string& note : notes) {
    elements +=
        text_element(kLeft, height + kNoteLine / 2.0, " font-size=\"12\" fill=\"#555555\"", note);
    height += kNoteLine;
  }
  return concat(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" "
      "width=\"",
      kPageWidth, "\" height=\"", height + 4, "\" viewBox=\"0 0 ", kPageWidth, " ", height + 4,
      "\" font-family=\"sans-serif\" font-size=\"", kFont,
      "\" fill=\"#222222\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n", elements,
      "</svg>\n");
}

}  // namespace tapestry::report
