#include "autograd/kernels/philox.h"

#include <bit>
#include <cassert>
#include <cmath>
#include <numbers>

#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/kernels/philox_blocks.h"

namespace tapestry::kernels {

namespace {

constexpr int64_t kBlocks = 256;  // Philox blocks per call, two numbers each

double to_double(double x) { return x; }
double to_double(float x) { return x; }
template <class T>
double to_double(T x) {
  return static_cast<float>(x);
}

/// Rounded to nearest: double to float, and for 16 bits from there.
template <class T>
T rounded(double x) {
  if constexpr (sizeof(T) == 8) {
    return x;
  } else {
    return T(static_cast<float>(x));
  }
}

/// The next number below a finite x that is not the lowest.
template <class T>
T next_below(T x) {
  using Bits = std::conditional_t<sizeof(T) == 8, uint64_t,
                                  std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
  constexpr Bits kSign = static_cast<Bits>(Bits{1} << (sizeof(T) * 8 - 1));
  auto bits = std::bit_cast<Bits>(x);
  if ((bits & ~kSign) == 0) {
    bits = kSign | 1U;
  } else {
    bits = static_cast<Bits>((bits & kSign) != 0 ? bits + 1 : bits - 1);
  }
  return std::bit_cast<T>(bits);
}

/// Calls body(T null pointer) with the element type of a floating dtype.
template <class F>
void with_floating_type(DType dtype, const F& f) {
  assert(is_floating(dtype));
  switch (dtype) {
    case kFloat64:
      return f(static_cast<double*>(nullptr));
    case kBFloat16:
      return f(static_cast<BFloat16*>(nullptr));
    case kFloat16:
      return f(static_cast<Float16*>(nullptr));
    default:
      return f(static_cast<float*>(nullptr));
  }
}

/// Calls pair(i, w0, w1) for each Philox block of indices first_index + [0, n): its two 64-bit
/// words belong to y[i] and y[i + 1], of which one may be outside of [0, n).
template <class Pair>
void for_word_pairs(
    int64_t n, uint64_t seed, uint64_t stream, uint64_t first_index, const Pair& pair) {
  const auto odd = static_cast<int64_t>(first_index % 2);
  const int64_t blocks = n == 0 ? 0 : (odd + n + 1) / 2;
  const auto generate = TAPESTRY_DISPATCH(philox_blocks);
  parallel_for(blocks, kGrainSize / 16, [&](int64_t begin, int64_t end) {
    uint32_t words[4 * kBlocks];
    for (int64_t done = begin; done < end; done += kBlocks) {
      const int64_t m = std::min(end - done, kBlocks);
      generate(seed, stream, first_index / 2 + static_cast<uint64_t>(done), m, words);
      for (int64_t b = 0; b < m; ++b) {
        const uint32_t* w = words + 4 * b;
        pair(2 * (done + b) - odd, w[0] | (uint64_t{w[1]} << 32U), w[2] | (uint64_t{w[3]} << 32U));
      }
    }
  });
}

}  // namespace

void fill_uniform(DType dtype,
                  int64_t n,
                  uint64_t seed,
                  uint64_t stream,
                  uint64_t first_index,
                  double low,
                  double high,
                  void* y_) {
  with_floating_type(dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    auto* y = static_cast<T*>(y_);
    const auto number = [&](uint64_t word) {
      const double u = sizeof(T) == 8 ? static_cast<double>(word >> 11U) * 0x1p-53
                                      : static_cast<double>(word >> 40U) * 0x1p-24;
      const T x = rounded<T>(low + (high - low) * u);
      return to_double(x) >= high && low < high ? next_below(x) : x;
    };
    for_word_pairs(n, seed, stream, first_index, [&](int64_t i, uint64_t w0, uint64_t w1) {
      if (i >= 0) {
        y[i] = number(w0);
      }
      if (i + 1 < n) {
        y[i + 1] = number(w1);
      }
    });
  });
}

void fill_normal(DType dtype,
                 int64_t n,
                 uint64_t seed,
                 uint64_t stream,
                 uint64_t first_index,
                 double mean,
                 double std,
                 void* y_) {
  with_floating_type(dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    auto* y = static_cast<T*>(y_);
    for_word_pairs(n, seed, stream, first_index, [&](int64_t i, uint64_t w0, uint64_t w1) {
      const double u1 = static_cast<double>((w0 >> 11U) + 1) * 0x1p-53;
      const double u2 = static_cast<double>(w1 >> 11U) * 0x1p-53;
      const double radius = std * std::sqrt(-2.0 * std::log(u1));
      const double angle = 2.0 * std::numbers::pi * u2;
      if (i >= 0) {
        y[i] = rounded<T>(mean + radius * std::cos(angle));
      }
      if (i + 1 < n) {
        y[i + 1] = rounded<T>(mean + radius * std::sin(angle));
      }
    });
  });
}

void fill_bernoulli(int64_t n,
                    uint64_t seed,
                    uint64_t stream,
                    uint64_t first_index,
                    double keep_probability,
                    bool* y) {
  const uint64_t threshold = bernoulli_threshold(keep_probability);
  const auto run = TAPESTRY_DISPATCH(bernoulli_range);
  parallel_for(n, kGrainSize, [&](int64_t begin, int64_t end) {
    run(end - begin, seed, stream, first_index + static_cast<uint64_t>(begin), threshold,
        y + begin);
  });
}

void dropout(DType dtype,
             int64_t n,
             uint64_t seed,
             uint64_t stream,
             uint64_t first_index,
             double keep_probability,
             double scale,
             const void* x,
             void* y) {
  assert(is_floating(dtype));
  const uint64_t threshold = bernoulli_threshold(keep_probability);
  const auto run = TAPESTRY_DISPATCH(dropout_range);
  parallel_for(n, kGrainSize, [&](int64_t begin, int64_t end) {
    const int64_t at = begin * size_of(dtype);
    run(dtype, end - begin, seed, stream, first_index + static_cast<uint64_t>(begin), threshold,
        scale, static_cast<const char*>(x) + at, static_cast<char*>(y) + at);
  });
}

}  // namespace tapestry::kernels
