#include "autograd/tensor/shape.h"

#include <algorithm>
#include <ostream>

#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

void check_count(size_t count) {
  check<ValueError>(count <= kMaxDims, "shape: ", count, " axes, at most ", kMaxDims,
                    " are supported");
}

}  // namespace

Shape::Shape(std::initializer_list<int64_t> values)
    : Shape(std::span<const int64_t>(values.begin(), values.size())) {}

Shape::Shape(std::span<const int64_t> values) : size_(static_cast<uint32_t>(values.size())) {
  check_count(values.size());
  std::copy(values.begin(), values.end(), values_.begin());
}

Shape Shape::filled(int64_t n, int64_t value) {
  check_count(static_cast<size_t>(n));
  Shape out;
  out.size_ = static_cast<uint32_t>(n);
  std::fill(out.begin(), out.end(), value);
  return out;
}

void Shape::push_back(int64_t value) {
  check_count(size_ + 1U);
  values_[size_++] = value;
}

void Shape::insert(int64_t position, int64_t value) {
  push_back(value);
  std::rotate(begin() + position, end() - 1, end());
}

void Shape::erase(int64_t position) {
  std::copy(begin() + position + 1, end(), begin() + position);
  --size_;
}

int64_t Shape::numel() const { return checked_numel("numel", *this); }

std::string Shape::str() const {
  std::string out = "[";
  for (int64_t i = 0; i < size(); ++i) {
    out += (i > 0 ? ", " : "") + std::to_string((*this)[i]);
  }
  return out + "]";
}

bool operator==(const Shape& a, const Shape& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

std::ostream& operator<<(std::ostream& out, const Shape& shape) { return out << shape.str(); }

int64_t checked_numel(std::string_view op, const Shape& shape, int64_t item) {
  int64_t product = item;
  bool fits = true;
  bool empty = false;
  for (const int64_t size : shape) {
    empty |= size == 0;
    fits &= !__builtin_mul_overflow(product, size == 0 ? 1 : size, &product);
  }
  check<ValueError>(fits, op, ": shape ", shape, " is too large to address");
  return empty ? 0 : product;
}

Strides contiguous_strides(const Shape& shape) {
  Strides strides = Shape::filled(shape.size(), 1);
  int64_t product = 1;
  bool fits = true;
  for (int64_t i = shape.size() - 1; i >= 0; --i) {
    strides[i] = product;
    fits &= !__builtin_mul_overflow(product, std::max<int64_t>(shape[i], 1), &product);
  }
  if (!fits) [[unlikely]] {
    checked_numel("strides", shape);  // throws
  }
  return strides;
}

int64_t normalize_axis(std::string_view op, int64_t axis, int64_t n) {
  const int64_t range = std::max<int64_t>(n, 1);
  check<IndexError>(axis >= -range && axis < range, op, ": axis ", axis, " is outside [", -range,
                    ", ", range - 1, "] of a tensor with ", n, " axes");
  return axis < 0 ? axis + range : axis;
}

Shape normalize_axes(std::string_view op, std::span<const int64_t> axes, int64_t n) {
  Shape out;
  if (axes.empty()) {
    for (int64_t i = 0; i < n; ++i) {
      out.push_back(i);
    }
    return out;
  }
  for (const int64_t axis : axes) {
    const int64_t normalized = normalize_axis(op, axis, n);
    check<ValueError>(std::find(out.begin(), out.end(), normalized) == out.end(), op, ": axis ",
                      axis, " is named twice");
    if (n > 0) {
      out.push_back(normalized);
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

Shape broadcast_shapes(std::string_view op, const Shape& a, const Shape& b) {
  const int64_t n = std::max(a.size(), b.size());
  Shape out = Shape::filled(n, 1);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t ia = i - (n - a.size());
    const int64_t ib = i - (n - b.size());
    const int64_t sa = ia < 0 ? 1 : a[ia];
    const int64_t sb = ib < 0 ? 1 : b[ib];
    check<ValueError>(sa == sb || sa == 1 || sb == 1, op, ": shapes do not broadcast: ", a, " and ",
                      b, " differ on axis ", i - n);
    out[i] = sa == 1 ? sb : sa;
  }
  checked_numel(op, out);
  return out;
}

Shape infer_shape(std::string_view op, const Shape& requested, int64_t numel) {
  Shape out = requested;
  int64_t unknown = -1;
  int64_t known = 1;
  for (int64_t i = 0; i < out.size(); ++i) {
    if (out[i] == -1) {
      check<ValueError>(unknown < 0, op, ": more than one -1 in shape ", requested);
      unknown = i;
    } else {
      check<ValueError>(out[i] >= 0, op, ": negative size in shape ", requested);
    }
  }
  if (unknown >= 0) {
    out[unknown] = 1;
  }
  known = checked_numel(op, out);
  if (unknown >= 0) {
    check<ValueError>(known > 0 && numel % known == 0, op, ": shape ", requested, " cannot hold ",
                      numel, " elements");
    out[unknown] = numel / known;
  } else {
    check<ValueError>(known == numel, op, ": shape ", requested, " does not hold ", numel,
                      " elements");
  }
  return out;
}

Shape reduced_shape(const Shape& shape, const Shape& axes, bool keepdim) {
  Shape out;
  for (int64_t i = 0; i < shape.size(); ++i) {
    const bool reduced = std::find(axes.begin(), axes.end(), i) != axes.end();
    if (!reduced) {
      out.push_back(shape[i]);
    } else if (keepdim) {
      out.push_back(1);
    }
  }
  return out;
}

}  // namespace tapestry
