// A C++ number as an operand of a tensor.
#pragma once

#include <concepts>
#include <type_traits>

namespace tapestry {

/// A number that remembers whether it was written as an integer (2) or as a floating one (2.0 or
/// 1.5F): with a tensor of integers, the first gives integers and the second float32,
/// whatever its value, as in PyTorch.
class Scalar {
 public:
  template <class T>
  requires(
      std::convertible_to<T, double> &&
      !std::is_same_v<std::remove_cvref_t<T>,
                      Scalar>) constexpr Scalar(T value)  // NOLINT(google-explicit-constructor):
                                                          // a number is one
      : value_(static_cast<double>(value)), is_floating_(!std::is_integral_v<T>) {}

  constexpr double value() const { return value_; }
  constexpr bool is_floating() const { return is_floating_; }
  constexpr Scalar operator-() const {
    Scalar out = *this;
    out.value_ = -value_;
    return out;
  }

 private:
  double value_;
  bool is_floating_;
};

}  // namespace tapestry
