// How far two tensors are apart, in the units in which rounding is measured and bounds are stated.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>

#include "autograd/tensor/tensor.h"

namespace tapestry::dump {

/// Of 16-bit values single elements say little, so whole tensors are compared by Euclidean norms;
/// of wider ones by their worst element.
enum class DistanceUnit : uint8_t {
  kElement,    ///< max|found - expected| / max|expected|
  kEuclidean,  ///< |found - expected| / |expected|
};
/// kEuclidean for "bfloat16" and "float16".
DistanceUnit distance_unit(std::string_view data_type);

/// Sums up over the pieces of a tensor.
class DistanceSum {
 public:
  explicit DistanceSum(DistanceUnit unit) : unit_(unit) {}

  /// Contiguous tensors of float32 or float64 with as many elements each. Where both have NaN, or
  /// the same infinity, nothing differs; where one has, the distance is infinite. Returns whether
  /// the worst element so far is in this piece.
  bool add(const Tensor& found, const Tensor& expected);

  /// 0 where nothing differs, whatever the scale; infinity if all of `expected` is 0 and something
  /// differs.
  double distance() const;
  double largest_difference() const { return largest_difference_; }
  double euclidean_difference() const;
  /// Index of the worst element within its piece, and the two values there.
  int64_t worst() const { return worst_; }
  double found() const { return found_; }
  double expected() const { return expected_; }

 private:
  DistanceUnit unit_;
  double largest_difference_ = -1;
  double largest_expected_ = 0;
  double squared_difference_ = 0;
  double squared_expected_ = 0;
  int64_t worst_ = 0;
  double found_ = 0;
  double expected_ = 0;
};

/// Of tensors of the same number of elements, any dtype and strides. ValueError if the numbers
/// differ.
double tensor_distance(const Tensor& found, const Tensor& expected, DistanceUnit unit);

/// The largest absolute value and the Euclidean norm of the finite elements: what distances are
/// shares of.
std::pair<double, double> tensor_size(const Tensor& x);

}  // namespace tapestry::dump
