#include "autograd/kernels/exact/exact_squares.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>

#include "autograd/kernels/machine/parallel_for.h"

namespace tapestry::kernels {

namespace {

__extension__ using WideSum = unsigned __int128;  // multiples of 2^-85, modulo 2^128

constexpr int kCoarseUnit = -42;  // exponents
constexpr int kFineUnit = -85;
constexpr int kSquareDigitBits = 32;

bool has_squares(double largest) { return std::isfinite(largest) && largest > 0; }

// All magnitudes up to `largest` are below 2^exponent.
int exponent_above(double largest) { return std::ilogb(largest) + 1; }

// `exponent` is that of the bound of all squares.
WideSum wide_sum(int64_t n, const float* x, int exponent) {
  const double bound = std::ldexp(1.0, exponent);
  const double coarse_units = std::ldexp(1.0, -exponent - kCoarseUnit);
  const double fine_units = std::ldexp(1.0, -exponent - kFineUnit);
  WideSum sum = 0;
  for (int64_t i = 0; i < n; i += kSquareBlock) {
    const SquareBins bins =
        TAPESTRY_DISPATCH(square_bins)(std::min(kSquareBlock, n - i), x + i, bound);
    const auto coarse = static_cast<int64_t>(bins.coarse * coarse_units);
    const auto fine = static_cast<int64_t>(bins.fine * fine_units);
    // The sign of what is added goes modulo 2^128.
    sum += (static_cast<WideSum>(coarse) << (kCoarseUnit - kFineUnit)) + static_cast<WideSum>(fine);
  }
  return sum;
}

}  // namespace

float largest_magnitude(int64_t n, const float* x) {
  std::mutex mutex;
  int32_t largest = 0;
  parallel_for(n, kGrainSize, [&](int64_t begin, int64_t end) {
    const int32_t own = TAPESTRY_DISPATCH(largest_bits)(end - begin, x + begin);
    const std::scoped_lock lock(mutex);
    largest = std::max(largest, own);
  });
  float magnitude = 0;
  std::memcpy(&magnitude, &largest, sizeof(magnitude));
  return magnitude;
}

ExactSquares exact_squares(int64_t n, const float* x, double largest) {
  ExactSquares digits = {};
  if (!has_squares(largest)) {
    return digits;
  }
  const int exponent = 2 * exponent_above(largest);
  std::mutex mutex;
  WideSum sum = 0;
  parallel_for(n, kGrainSize, [&](int64_t begin, int64_t end) {
    const WideSum own = wide_sum(end - begin, x + begin, exponent);
    const std::scoped_lock lock(mutex);
    sum += own;
  });
  for (double& digit : digits) {
    digit = static_cast<double>(static_cast<uint32_t>(sum));
    sum >>= kSquareDigitBits;
  }
  return digits;
}

double exact_norm(const ExactSquares& squares, double largest) {
  if (!has_squares(largest)) {
    return largest;
  }
  WideSum sum = 0;
  for (size_t i = squares.size(); i-- > 0;) {
    sum = (sum << kSquareDigitBits) + static_cast<WideSum>(static_cast<int64_t>(squares[i]));
  }
  // The square root of an even power of two more is the same number, with another exponent.
  const double value = std::ldexp(static_cast<double>(sum), kFineUnit);
  return std::ldexp(std::sqrt(value), exponent_above(largest));
}

}  // namespace tapestry::kernels
