// New tensors. None of them is recorded; all belong to the current rank's allocator.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "autograd/tensor/tensor.h"

namespace tapestry {

/// Undefined content. ValueError on a negative size.
Tensor empty(const Shape& shape, DType dtype = kFloat32);
Tensor zeros(const Shape& shape, DType dtype = kFloat32);
Tensor ones(const Shape& shape, DType dtype = kFloat32);
/// ValueError if int8 or uint8 does not hold the value.
Tensor full(const Shape& shape, Scalar value, DType dtype = kFloat32);
/// Contiguous tensors with the shape and dtype of another.
Tensor empty_like(const Tensor& other);
Tensor zeros_like(const Tensor& other);
Tensor ones_like(const Tensor& other);

/// start, start + step, ... below (for a negative step: above) stop; exact where all three are
/// integers. ValueError if step is 0 or has the wrong sign.
Tensor arange(Scalar start, Scalar stop, Scalar step = 1, DType dtype = kInt64);
inline Tensor arange(int64_t stop, DType dtype = kInt64) { return arange(0, stop, 1, dtype); }
/// count values from start to stop, both included. ValueError if count is negative.
Tensor linspace(double start, double stop, int64_t count, DType dtype = kFloat32);
/// Ones on the diagonal of an [n, m] matrix (m defaults to n).
Tensor eye(int64_t n, int64_t m = -1, DType dtype = kFloat32);

/// A tensor of the given values: float -> float32, double -> float64, int8_t -> int8, uint8_t ->
/// uint8, int32_t -> int32, int64_t -> int64, bool -> bool. ValueError if their number does not fit
/// the shape.
template <class T>
Tensor tensor(std::span<const T> values, const Shape& shape);
template <class T>
Tensor tensor(const std::vector<T>& values, const Shape& shape) {
  return tensor(std::span<const T>(values), shape);
}
/// A float32 vector.
Tensor tensor(std::initializer_list<float> values);
/// A scalar.
Tensor scalar(Scalar value, DType dtype = kFloat32);

/// A contiguous tensor on memory that lives elsewhere; `release` is called when the last tensor on
/// it is gone.
Tensor from_blob(void* data,
                 const Shape& shape,
                 DType dtype,
                 std::function<void()> release = nullptr);

}  // namespace tapestry
