#include "diagnosis/dump/tensor_distance.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "autograd/tensor/error.h"
#include "diagnosis/dump/dense.h"

namespace tapestry::dump {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

struct PieceDifference {
  double largest_difference = -1;
  double largest_expected = 0;
  double squared_difference = 0;
  double squared_expected = 0;
  int64_t worst = 0;
};

template <class A, class B>
PieceDifference difference_of(int64_t n, const A* found, const B* expected) {
  PieceDifference out;
  for (int64_t i = 0; i < n; ++i) {
    const auto a = static_cast<double>(found[i]);
    const auto b = static_cast<double>(expected[i]);
    double difference = std::fabs(a - b);
    if (!std::isfinite(difference)) {
      const bool same = a == b || (std::isnan(a) && std::isnan(b));
      difference = same ? 0 : kInfinite;
    }
    if (difference > out.largest_difference) {
      out.largest_difference = difference;
      out.worst = i;
    }
    out.squared_difference += difference * difference;
    if (std::isfinite(b)) {
      out.largest_expected = std::max(out.largest_expected, std::fabs(b));
      out.squared_expected += b * b;
    }
  }
  return out;
}

PieceDifference difference_of(const Tensor& found, const Tensor& expected) {
  const int64_t n = found.numel();
  if (found.dtype() == kFloat32) {
    return expected.dtype() == kFloat32
               ? difference_of(n, found.data<float>(), expected.data<float>())
               : difference_of(n, found.data<float>(), expected.data<double>());
  }
  return expected.dtype() == kFloat32
             ? difference_of(n, found.data<double>(), expected.data<float>())
             : difference_of(n, found.data<double>(), expected.data<double>());
}

double element_at(const Tensor& x, int64_t index) {
  return x.dtype() == kFloat32 ? static_cast<double>(x.data<float>()[index])
                               : x.data<double>()[index];
}

double ratio(double difference, double scale) {
  return difference <= 0 ? 0 : scale > 0 ? difference / scale : kInfinite;
}

}  // namespace

DistanceUnit distance_unit(std::string_view data_type) {
  return data_type == name_of(kBFloat16) || data_type == name_of(kFloat16)
             ? DistanceUnit::kEuclidean
             : DistanceUnit::kElement;
}

bool DistanceSum::add(const Tensor& found, const Tensor& expected) {
  check<ValueError>(found.numel() == expected.numel(), "tensor_distance: ", found.numel(),
                    " elements against ", expected.numel());
  const PieceDifference piece = difference_of(found, expected);
  largest_expected_ = std::max(largest_expected_, piece.largest_expected);
  squared_difference_ += piece.squared_difference;
  squared_expected_ += piece.squared_expected;
  if (piece.largest_difference <= largest_difference_) {
    return false;
  }
  largest_difference_ = piece.largest_difference;
  worst_ = piece.worst;
  found_ = element_at(found, worst_);
  expected_ = element_at(expected, worst_);
  return true;
}

double DistanceSum::euclidean_difference() const { return std::sqrt(squared_difference_); }

double DistanceSum::distance() const {
  return unit_ == DistanceUnit::kElement
             ? ratio(largest_difference_, largest_expected_)
             : ratio(euclidean_difference(), std::sqrt(squared_expected_));
}

std::pair<double, double> tensor_size(const Tensor& x) {
  const Tensor values = dense(wide(x));
  const PieceDifference piece = difference_of(values, values);
  return {piece.largest_expected, std::sqrt(piece.squared_expected)};
}

double tensor_distance(const Tensor& found, const Tensor& expected, DistanceUnit unit) {
  DistanceSum sum(unit);
  sum.add(wide(found), wide(expected));
  return sum.distance();
}

}  // namespace tapestry::dump
