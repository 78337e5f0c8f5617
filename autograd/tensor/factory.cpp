#include "autograd/tensor/factory.h"

#include <algorithm>
#include <cmath>

#include "autograd/kernels/machine/dispatch.h"
#include "autograd/kernels/machine/team_state.h"
#include "autograd/kernels/memory.h"
#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

template <class T, class Number>
T convert(Number value) {
  if constexpr (std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>) {
    return T(static_cast<float>(value));
  } else if constexpr (std::is_same_v<T, bool>) {
    return value != 0;
  } else if constexpr (sizeof(T) == 1) {
    return static_cast<T>(static_cast<int64_t>(value));  // wraps
  } else {
    return static_cast<T>(value);
  }
}

// Fills a new contiguous tensor with f(index).
template <class F>
Tensor generate(const Shape& shape, DType dtype, const F& f) {
  Tensor out = empty(shape, dtype);
  dispatch_all(dtype, [&]<class T>() {
    T* data = static_cast<T*>(out.raw());
    const int64_t n = out.numel();
    for (int64_t i = 0; i < n; ++i) {
      data[i] = convert<T>(f(i));
    }
  });
  return out;
}

}  // namespace

Tensor empty(const Shape& shape, DType dtype) {
  for (const int64_t size : shape) {
    check<ValueError>(size >= 0, "empty: negative size in shape ", shape);
  }
  const int64_t bytes = checked_numel("empty", shape, size_of(dtype));
  const kernels::OpNameGuard name("empty");
  return Tensor(
      make_ref<TensorImpl>(make_ref<Storage>(bytes), 0, shape, contiguous_strides(shape), dtype));
}

Tensor zeros(const Shape& shape, DType dtype) {
  const kernels::OpNameGuard name("zeros");
  Tensor out = empty(shape, dtype);
  kernels::clear(out.raw(), out.numel() * size_of(dtype));
  return out;
}

Tensor ones(const Shape& shape, DType dtype) {
  const kernels::OpNameGuard name("ones");
  return full(shape, 1, dtype);
}

Tensor full(const Shape& shape, Scalar number, DType dtype) {
  const kernels::OpNameGuard name("full");
  if (dtype == kInt64 && number.exceeds_double()) {
    return generate(shape, dtype, [&](int64_t) { return number.integer(); });
  }
  const double value = number.value();
  const double lowest = dtype == kInt8 ? -128 : 0;
  const double highest = dtype == kInt8 ? 127 : 255;
  check<ValueError>((dtype != kInt8 && dtype != kUInt8) || (value >= lowest && value <= highest),
                    "full: ", value, " is outside ", name_of(dtype), ", [", lowest, ", ", highest,
                    "]");
  return generate(shape, dtype, [&](int64_t) { return value; });
}

Tensor empty_like(const Tensor& other) { return empty(other.shape(), other.dtype()); }
Tensor zeros_like(const Tensor& other) { return zeros(other.shape(), other.dtype()); }
Tensor ones_like(const Tensor& other) { return ones(other.shape(), other.dtype()); }

Tensor arange(Scalar start, Scalar stop, Scalar step, DType dtype) {
  const double first = start.value();
  const double by = step.value();
  check<ValueError>(by != 0 && (stop.value() - first) / by >= 0, "arange: from ", first, " to ",
                    stop.value(), " cannot be reached in steps of ", by);
  const double steps = std::ceil((stop.value() - first) / by);
  check<ValueError>(steps < 0x1p62, "arange: from ", first, " to ", stop.value(), " in steps of ",
                    by, " are too many elements");
  if (start.exceeds_double() || stop.exceeds_double() || step.exceeds_double()) {
    const bool all_integers = !start.is_floating() && !stop.is_floating() && !step.is_floating();
    if (dtype == kInt64 && all_integers) {
      // Unsigned differences do not overflow, and the check above has seen to the signs.
      const auto one = static_cast<uint64_t>(step.integer());
      const auto all =
          static_cast<uint64_t>(stop.integer()) - static_cast<uint64_t>(start.integer());
      const bool rises = step.integer() > 0;
      const uint64_t length = rises ? all : -all;
      const uint64_t stride = rises ? one : -one;
      const auto count = static_cast<int64_t>(length / stride + (length % stride != 0 ? 1 : 0));
      return generate({count}, dtype, [&](int64_t i) {
        return static_cast<int64_t>(static_cast<uint64_t>(start.integer()) +
                                    static_cast<uint64_t>(i) * one);
      });
    }
  }
  const auto count = static_cast<int64_t>(steps);
  return generate({count}, dtype, [&](int64_t i) { return first + static_cast<double>(i) * by; });
}

Tensor linspace(double start, double stop, int64_t count, DType dtype) {
  check<ValueError>(count >= 0, "linspace: negative count ", count);
  const double step = count > 1 ? (stop - start) / static_cast<double>(count - 1) : 0;
  // From both ends towards the middle, so that the last value is exactly stop.
  return generate({count}, dtype, [&](int64_t i) {
    return i < count / 2 || count == 1 ? start + step * static_cast<double>(i)
                                       : stop - step * static_cast<double>(count - 1 - i);
  });
}

Tensor eye(int64_t n, int64_t m, DType dtype) {
  const int64_t columns = m < 0 ? n : m;
  return generate({n, columns}, dtype,
                  [&](int64_t i) { return i / columns == i % columns ? 1.0 : 0.0; });
}

template <class T>
Tensor tensor(std::span<const T> values, const Shape& shape) {
  Tensor out = empty(shape, dtype_of<T>());
  check<ValueError>(out.numel() == static_cast<int64_t>(values.size()), "tensor: ", values.size(),
                    " values for shape ", shape);
  std::copy(values.begin(), values.end(), out.template data<T>());
  return out;
}

template Tensor tensor(std::span<const float> values, const Shape& shape);
template Tensor tensor(std::span<const double> values, const Shape& shape);
template Tensor tensor(std::span<const int8_t> values, const Shape& shape);
template Tensor tensor(std::span<const uint8_t> values, const Shape& shape);
template Tensor tensor(std::span<const int32_t> values, const Shape& shape);
template Tensor tensor(std::span<const int64_t> values, const Shape& shape);
template Tensor tensor(std::span<const bool> values, const Shape& shape);

Tensor tensor(std::initializer_list<float> values) {
  return tensor(std::span<const float>(values.begin(), values.size()),
                {static_cast<int64_t>(values.size())});
}

Tensor scalar(Scalar value, DType dtype) { return full({}, value, dtype); }

Tensor from_blob(void* data, const Shape& shape, DType dtype, std::function<void()> release) {
  return Tensor(make_ref<TensorImpl>(
      make_ref<Storage>(data, checked_numel("from_blob", shape, size_of(dtype)),
                        std::move(release)),
      0, shape, contiguous_strides(shape), dtype));
}

}  // namespace tapestry
