// Curves as a picture in a file.
#pragma once

#include <string>
#include <vector>

#include "diagnosis/report/plot/curves.h"

namespace tapestry::plot {

/// An SVG document that needs nothing from outside. Training curves are whole lines, validation
/// curves broken ones with a mark at each loss. The colours of the runs are those of Okabe and Ito
/// (2008), which colour-blind people can tell apart; each run also has marks of its own shape.
/// Curves before smoothing lie faint behind all others, those of validation on top. Lines are
/// `polyline` elements, or a dot where gaps leave a single point; a curve's <g> has the class
/// "curve" and its label as <title>, that of what was smoothed the class "raw". The <g> of the
/// classes "x ticks" and "y ticks" hold for each tick a grid line at its place and its label.
std::string svg_chart(const Chart& chart);

/// Several charts one below the other, lower ones, each as above in a <g> of the class "panel".
std::string svg_charts(const std::vector<Chart>& charts);

}  // namespace tapestry::plot
