// Curves as text, for a terminal.
#pragma once

#include <string>

#include "diagnosis/report/plot/curves.h"
#include "diagnosis/report/plot/text_canvas.h"

namespace tapestry::plot {

/// Lines, none wider than style.columns, that end in a line break: the picture with its axes, what
/// each letter stands for with the last loss and, of validation, the lowest one, and the notes. A
/// run's training curve has the letter a, b, ..., its validation curve the same in upper case; they
/// mark the curves, which colours alone would not tell apart. Curves before smoothing are not
/// drawn.
std::string text_chart(const Chart& chart, const TextStyle& style);

}  // namespace tapestry::plot
