#include "autograd/kernels/exact/exact_squares.h"

#include "autograd/kernels/isa/vector_math.h"

namespace tapestry::kernels::TAPESTRY_ISA {

namespace {

// What is added to one of them and taken away again is left as a multiple of the unit, all in parts
// of the bound.
constexpr double kRoundCoarse = 0x1.8p10;  // 2^-42
constexpr double kRoundFine = 0x1.8p-33;   // 2^-85
constexpr int64_t kSquareLanes = 16;

}  // namespace

// Of a magnitude, as an integer: NaN is above infinity, and that above all numbers.
int32_t largest_bits(int64_t n, const float* x) {
  int32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const auto bits = static_cast<int32_t>(bits_of(x[i]) & 0x7fffffffU);
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

// A square of 48 bits, and all that is added, is exact: how the loop is ordered does not show.
SquareBins square_bins(int64_t n, const float* x, double bound) {
  const double round_coarse = kRoundCoarse * bound;
  const double round_fine = kRoundFine * bound;
  double coarse[kSquareLanes] = {};
  double fine[kSquareLanes] = {};
  const auto add = [&](int64_t lane, float element) {
    const auto v = static_cast<double>(element);
    const double square = v * v;
    const double upper = (square + round_coarse) - round_coarse;
    const double lower = ((square - upper) + round_fine) - round_fine;
    coarse[lane] += upper;
    fine[lane] += lower;
  };
  int64_t i = 0;
  for (; i + kSquareLanes <= n; i += kSquareLanes) {
    TAPESTRY_VECTOR_LOOP
    for (int64_t lane = 0; lane < kSquareLanes; ++lane) {
      add(lane, x[i + lane]);
    }
  }
  for (; i < n; ++i) {
    add(0, x[i]);
  }
  SquareBins bins = {0, 0};
  for (int64_t lane = 0; lane < kSquareLanes; ++lane) {
    bins.coarse += coarse[lane];
    bins.fine += fine[lane];
  }
  return bins;
}

}  // namespace tapestry::kernels::TAPESTRY_ISA
