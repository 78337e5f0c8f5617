// Numbers that know their derivatives by two variables, for formulas written once.
#pragma once

#include <algorithm>
#include <cmath>

namespace tapestry::post_training {

/// A value with its exact derivatives by two variables (forward-mode differentiation).
struct Dual {
  double value = 0;
  double first = 0;   ///< derivative by the first variable
  double second = 0;  ///< by the second

  Dual() = default;
  Dual(double constant) : value(constant) {}  // NOLINT(google-explicit-constructor): as 1 - x reads
  Dual(double x, double by_first, double by_second)
      : value(x), first(by_first), second(by_second) {}
};

/// f(x) from f's value and slope at x.
inline Dual chain(const Dual& x, double value, double slope) {
  return {value, slope * x.first, slope * x.second};
}

inline Dual operator-(const Dual& x) { return chain(x, -x.value, -1); }
inline Dual operator+(const Dual& a, const Dual& b) {
  return {a.value + b.value, a.first + b.first, a.second + b.second};
}
inline Dual operator-(const Dual& a, const Dual& b) {
  return {a.value - b.value, a.first - b.first, a.second - b.second};
}
inline Dual operator*(const Dual& a, const Dual& b) {
  return {a.value * b.value, a.first * b.value + a.value * b.first,
          a.second * b.value + a.value * b.second};
}
inline Dual operator/(const Dual& a, double b) { return chain(a, a.value / b, 1 / b); }

inline Dual exp(const Dual& x) { return chain(x, std::exp(x.value), std::exp(x.value)); }
inline Dual expm1(const Dual& x) { return chain(x, std::expm1(x.value), std::exp(x.value)); }
inline Dual square(const Dual& x) { return chain(x, x.value * x.value, 2 * x.value); }
/// max(x, 0); the slope at 0 is 0.
inline Dual relu(const Dual& x) { return x.value > 0 ? x : Dual(0); }
/// min(x, limit); constant above the limit.
inline Dual at_most(const Dual& x, double limit) { return x.value <= limit ? x : Dual(limit); }

inline double sigmoid(double x) {
  const double e = std::exp(-std::abs(x));
  return (x >= 0 ? 1 : e) / (1 + e);
}
/// ln sigmoid(x), without overflow.
inline double log_sigmoid(double x) {
  return std::min(x, 0.0) - std::log1p(std::exp(-std::abs(x)));
}
inline Dual sigmoid(const Dual& x) {
  return chain(x, sigmoid(x.value), sigmoid(x.value) * sigmoid(-x.value));
}
inline Dual log_sigmoid(const Dual& x) { return chain(x, log_sigmoid(x.value), sigmoid(-x.value)); }

}  // namespace tapestry::post_training
