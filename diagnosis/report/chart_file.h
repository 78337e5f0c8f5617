// Charts in a file of their own.
#pragma once

#include <string>
#include <vector>

#include "diagnosis/report/line_chart.h"

namespace tapestry::report {

/// An SVG document that needs nothing from outside, with the charts one below the other, each in a
/// <g> of the class "panel". The colours of the runs are those of Okabe and Ito (2008), which
/// colour-blind people can tell apart; each run also has marks of its own shape, hollow on curves
/// of few points, which are broken lines. Curves are <g> of the class "line" with a <title>, as in
/// a page; their coordinates are hundredths of a pixel within the <g> of the class "area". The <g>
/// of the classes "x ticks" and "y ticks" hold the labels at their places. A chart's notes stand
/// below it.
std::string charts_svg(const std::vector<LineChart>& charts,
                       const std::string& x_title,
                       const std::vector<std::string>& notes = {});

/// What a curve is called where all are listed: "output, training".
std::string curve_label(const ChartCurve& curve);

}  // namespace tapestry::report
