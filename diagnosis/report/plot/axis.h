// From numbers to places in a picture: ranges, ticks at round numbers, and how they are written.
#pragma once

#include <string>
#include <vector>

namespace tapestry::plot {

/// A part of an axis, low <= high.
struct Range {
  double low = 0;
  double high = 1;

  double length() const { return high - low; }
  /// 0 at low, 1 at high.
  double part(double value) const { return (value - low) / length(); }
};

/// A range of a length above 0 with all finite values in it and a share `margin` of its length free
/// at both ends; where all are the same, one around it. [0, 1] if there are none.
Range range_of(const std::vector<double>& values, double margin);

struct Tick {
  double value = 0;
  std::string label;
};

/// Ticks in the range at multiples of 1, 2 or 5 times a power of ten, at most `most` (>= 2) of them
/// and as many as that allows. With `whole`, at whole numbers alone; a range without any has none.
/// Labels have the decimals that tell them apart; from 10,000 on they are written with k, M, B or T
/// (thousands to trillions), from 1e15 on and below 1e-6 with an exponent, as all of an axis.
std::vector<Tick> make_ticks(const Range& range, int most, bool whole = false);

}  // namespace tapestry::plot
