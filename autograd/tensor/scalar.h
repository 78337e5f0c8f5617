// C++ numbers beside tensors: operands (Scalar) and elements (Item).
#pragma once

#include <compare>
#include <concepts>
#include <cstdint>
#include <iosfwd>
#include <type_traits>
#include <utility>

#include "autograd/tensor/error.h"

namespace tapestry {

/// One element of a tensor as a number (Tensor::item(), at()): a double, but of a tensor of
/// integers the whole integer, which a double has to 2^53 only. It converts to double by itself and
/// to integers by static_cast, and meets integers, other items and operands of tensors exactly.
class Item {
 public:
  template <std::floating_point T>
  explicit constexpr Item(T value) : value_(static_cast<double>(value)) {}
  // Implicit, so that `condition ? 0 : x.item()` is ambiguous and does not compile: with the way
  // through double alone it would be an int, and 0.7 would be 0.
  template <std::integral T>
  constexpr Item(T value)  // NOLINT(google-explicit-constructor)
      : value_(static_cast<double>(value)),
        integer_(static_cast<int64_t>(value)),
        is_integer_(true) {}

  // NOLINTNEXTLINE(google-explicit-constructor): it is used as one
  constexpr operator double() const { return value_; }
  template <std::integral T>
  explicit constexpr operator T() const {
    return is_integer_ ? static_cast<T>(integer_) : static_cast<T>(value_);
  }

  constexpr bool is_integer() const { return is_integer_; }

  template <std::integral T>
  friend constexpr bool operator==(const Item& a, T b) {
    return a.is_integer_ ? std::cmp_equal(a.integer_, +b) : a.value_ == static_cast<double>(b);
  }
  template <std::integral T>
  friend constexpr std::partial_ordering operator<=>(const Item& a, T b) {
    if (!a.is_integer_) {
      return a.value_ <=> static_cast<double>(b);
    }
    return std::cmp_less(a.integer_, +b)      ? std::partial_ordering::less
           : std::cmp_greater(a.integer_, +b) ? std::partial_ordering::greater
                                              : std::partial_ordering::equivalent;
  }
  template <std::same_as<Item> T>
  friend constexpr bool operator==(const T& a, const T& b) {
    return b.is_integer_ ? a == b.integer_ : a.value_ == b.value_;
  }
  template <std::same_as<Item> T>
  friend constexpr std::partial_ordering operator<=>(const T& a, const T& b) {
    return b.is_integer_ ? a <=> b.integer_ : a.value_ <=> b.value_;
  }
  friend std::ostream& operator<<(std::ostream& out, const Item& item);

 private:
  double value_;
  int64_t integer_ = 0;
  bool is_integer_ = false;
};

/// A number that remembers whether it was written as an integer (2) or as a floating one (2.0 or
/// 1.5F): with a tensor of integers, the first gives integers and the second float32,
/// whatever its value, as in PyTorch. An integer keeps all of its bits. ValueError for one above
/// int64's largest.
class Scalar {
 public:
  template <class T>
  requires(std::convertible_to<T, double> && !std::is_same_v<std::remove_cvref_t<T>, Scalar> &&
           !std::is_same_v<std::remove_cvref_t<T>,
                           Item>) constexpr Scalar(T value)  // NOLINT(google-explicit-constructor):
                                                             // a number is one
      : value_(static_cast<double>(value)), is_floating_(!std::is_integral_v<T>) {
    if constexpr (std::is_integral_v<T>) {
      check<ValueError>(std::in_range<int64_t>(+value), "the number ", value,
                        " is above the largest of int64");
      integer_ = static_cast<int64_t>(value);
    }
  }
  constexpr Scalar(const Item& item)  // NOLINT(google-explicit-constructor): a number is one
      : value_(item), is_floating_(!item.is_integer()) {
    integer_ = is_floating_ ? 0 : static_cast<int64_t>(item);
  }

  constexpr double value() const { return value_; }
  constexpr bool is_floating() const { return is_floating_; }
  /// The number as it was written, if that is an integer; else 0.
  constexpr int64_t integer() const { return integer_; }
  /// An integer that value() does not hold exactly, having more than the 53 bits of a double.
  constexpr bool exceeds_double() const {
    constexpr int64_t kExact = int64_t{1} << 53;
    return integer_ > kExact || integer_ < -kExact;
  }
  constexpr Scalar operator-() const {
    Scalar out = *this;
    out.value_ = -value_;
    out.integer_ = static_cast<int64_t>(-static_cast<uint64_t>(integer_));  // wraps
    return out;
  }

 private:
  double value_;
  int64_t integer_ = 0;
  bool is_floating_;
};

}  // namespace tapestry
