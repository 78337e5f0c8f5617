#include "diagnosis/autopsy/value_range.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdio>

#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/tape/gradient_sum.h"
#include "autograd/tensor/dtype.h"

namespace tapestry::autopsy {

namespace {

// Magnitudes of IEEE numbers are ordered like the integers that their bits without the sign are,
// NaN above infinity: one pass finds the largest number and whether all are finite.
template <class Bits>
Bits largest_bits(const void* values, int64_t n) {
  constexpr Bits kMagnitude = static_cast<Bits>(~(Bits{1} << (8 * sizeof(Bits) - 1)));
  const auto* x = static_cast<const Bits*>(values);
  std::atomic<Bits> all{0};
  kernels::parallel_for(n, kernels::kGrainSize, [&](int64_t begin, int64_t end) {
    Bits largest = 0;
    for (int64_t i = begin; i < end; ++i) {
      const Bits magnitude = static_cast<Bits>(x[i] & kMagnitude);
      largest = magnitude > largest ? magnitude : largest;
    }
    Bits seen = all.load(std::memory_order_relaxed);
    while (seen < largest && !all.compare_exchange_weak(seen, largest)) {
    }
  });
  return all.load();
}

template <class T>
struct Format;
template <>
struct Format<float> {
  using Bits = uint32_t;
  static constexpr Bits kInfinity = 0x7f800000U;
  static double value(Bits bits) { return std::bit_cast<float>(bits); }
};
template <>
struct Format<double> {
  using Bits = uint64_t;
  static constexpr Bits kInfinity = 0x7ff0000000000000U;
  static double value(Bits bits) { return std::bit_cast<double>(bits); }
};
template <>
struct Format<BFloat16> {
  using Bits = uint16_t;
  static constexpr Bits kInfinity = 0x7f80U;
  static double value(Bits bits) { return static_cast<float>(std::bit_cast<BFloat16>(bits)); }
};
template <>
struct Format<Float16> {
  using Bits = uint16_t;
  static constexpr Bits kInfinity = 0x7c00U;
  static double value(Bits bits) { return static_cast<float>(std::bit_cast<Float16>(bits)); }
};

template <class T>
ValueRange range_of(const void* values, int64_t n) {
  using Bits = typename Format<T>::Bits;
  ValueRange range;
  const Bits largest = largest_bits<Bits>(values, n);
  if (largest < Format<T>::kInfinity) {
    range.largest = Format<T>::value(largest);
    return range;
  }
  // Bad ones are rare, so this may take its time.
  const auto* x = static_cast<const Bits*>(values);
  range.all_bad_are_masked = true;
  for (int64_t i = 0; i < n; ++i) {
    const double value = Format<T>::value(x[i]);
    if (std::isfinite(value)) {
      range.largest = std::max(range.largest, std::abs(value));
      continue;
    }
    range.all_bad_are_masked = range.all_bad_are_masked && std::isinf(value) && value < 0;
    if (range.first_bad < 0) {
      range.first_bad = i;
      range.bad_value = value_text(value);
    }
  }
  return range;
}

}  // namespace

ValueRange value_range(const Tensor& x) {
  if (!x.defined() || !is_floating(x.dtype()) || x.numel() == 0) {
    return {};
  }
  const Tensor values = x.is_contiguous() ? x : detail::contiguous_copy(x);
  switch (values.dtype()) {
    case kFloat64:
      return range_of<double>(values.raw(), values.numel());
    case kBFloat16:
      return range_of<BFloat16>(values.raw(), values.numel());
    case kFloat16:
      return range_of<Float16>(values.raw(), values.numel());
    default:
      return range_of<float>(values.raw(), values.numel());
  }
}

int64_t place_of_magnitude(const Tensor& x, double magnitude) {
  if (!x.defined() || !is_floating(x.dtype())) {
    return -1;
  }
  const Tensor values = x.is_contiguous() ? x : detail::contiguous_copy(x);
  const auto find = [&](const auto* first, const auto& value_of) -> int64_t {
    for (int64_t i = 0; i < values.numel(); ++i) {
      if (std::abs(value_of(first[i])) == magnitude) {
        return i;
      }
    }
    return -1;
  };
  switch (values.dtype()) {
    case kFloat64:
      return find(values.data<double>(), [](double v) { return v; });
    case kBFloat16:
      return find(static_cast<const BFloat16*>(values.raw()),
                  [](BFloat16 v) { return static_cast<double>(static_cast<float>(v)); });
    case kFloat16:
      return find(static_cast<const Float16*>(values.raw()),
                  [](Float16 v) { return static_cast<double>(static_cast<float>(v)); });
    default:
      return find(values.data<float>(), [](float v) { return static_cast<double>(v); });
  }
}

std::string value_text(double value) {
  if (std::isnan(value)) {
    return "nan";
  }
  if (std::isinf(value)) {
    return value > 0 ? "inf" : "-inf";
  }
  char text[32];
  std::snprintf(text, sizeof(text), "%.6g", value);
  return text;
}

}  // namespace tapestry::autopsy
