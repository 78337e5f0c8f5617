// What one call of the loops of the short convolution does.
#pragma once

#include <cstdint>

namespace tapestry::kernels {

/// Channels that a unit goes along with: their rows of all taps stay in the first cache.
inline constexpr int64_t kConvolutionChannels = 256;

struct ConvolutionUnit {
  int64_t row_begin = 0;  ///< of batch times tokens
  int64_t row_end = 0;
  int64_t channel_begin = 0;
  int64_t channel_end = 0;
};

/// Elements of compute type: rows of each tap of x and of dz, sums and weights of each tap, and
/// some rows more.
inline constexpr int64_t convolution_scratch(int64_t taps) {
  return (3 * taps + 6) * kConvolutionChannels;
}

}  // namespace tapestry::kernels
