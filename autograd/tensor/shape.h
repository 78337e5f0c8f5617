// Sizes and strides of a tensor, and the arithmetic of broadcasting.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <span>
#include <string>
#include <string_view>

#include "autograd/kernels/machine/limits.h"

namespace tapestry {

/// Most axes a tensor can have.
inline constexpr int kMaxDims = kernels::kMaxDims;

/// A short list of axis values (sizes, strides or axis numbers) without heap storage.
class Shape {
 public:
  Shape() = default;
  /// ValueError if there are more than kMaxDims values.
  Shape(std::initializer_list<int64_t> values);
  explicit Shape(std::span<const int64_t> values);
  /// n axes, each of the given value.
  static Shape filled(int64_t n, int64_t value);

  int64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  int64_t operator[](int64_t i) const { return values_[static_cast<size_t>(i)]; }
  int64_t& operator[](int64_t i) { return values_[static_cast<size_t>(i)]; }
  int64_t back() const { return values_[size_ - 1U]; }
  int64_t& back() { return values_[size_ - 1U]; }
  const int64_t* begin() const { return values_.data(); }
  const int64_t* end() const { return values_.data() + size_; }
  int64_t* begin() { return values_.data(); }
  int64_t* end() { return values_.data() + size_; }
  operator std::span<const int64_t>() const {  // NOLINT(google-explicit-constructor)
    return {values_.data(), size_};
  }

  void push_back(int64_t value);
  void insert(int64_t position, int64_t value);
  void erase(int64_t position);
  void pop_back() { --size_; }

  /// Product of all values; 1 for a scalar. ValueError as checked_numel.
  int64_t numel() const;
  /// "[4, 3]"
  std::string str() const;

  friend bool operator==(const Shape& a, const Shape& b);

 private:
  std::array<int64_t, kMaxDims> values_{};  // only the first size_ are meaningful
  uint32_t size_ = 0;
};

using Strides = Shape;

std::ostream& operator<<(std::ostream& out, const Shape& shape);

/// The number of elements of a shape times `item` (the size of one in bytes, for example). Every
/// product of sizes goes through here: ValueError, naming op and shape, if it exceeds 63 bits.
/// Sizes of 0 do not excuse the others, so that strides and products of some of the axes fit as
/// well.
int64_t checked_numel(std::string_view op, const Shape& shape, int64_t item = 1);

/// Row-major strides, in elements. ValueError as checked_numel.
Strides contiguous_strides(const Shape& shape);

/// Counts a negative axis from the end. IndexError, naming op, if it lies outside [-n, n); a scalar
/// (n = 0) accepts 0 and -1, as PyTorch does.
int64_t normalize_axis(std::string_view op, int64_t axis, int64_t n);

/// Sorted, distinct, non-negative axes; an empty list means all of them. ValueError if one repeats.
Shape normalize_axes(std::string_view op, std::span<const int64_t> axes, int64_t n);

/// The common shape of two operands under NumPy's rules. ValueError, naming op and both shapes.
Shape broadcast_shapes(std::string_view op, const Shape& a, const Shape& b);

/// Replaces one -1 by the size that keeps numel elements. ValueError if that cannot be.
Shape infer_shape(std::string_view op, const Shape& requested, int64_t numel);

/// Shape of a reduction over normalized axes.
Shape reduced_shape(const Shape& shape, const Shape& axes, bool keepdim);

}  // namespace tapestry
