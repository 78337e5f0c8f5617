#include <algorithm>
#include <vector>

#include "autograd/ops/shape_ops.h"
#include "autograd/ops/view.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/check_defined.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

// The gradients of the parts as the one of x, without a copy: where they lie in one memory as the
// parts of x do, and nobody records what becomes of them. Else undefined.
Tensor joined(const TensorList& parts,
              std::span<const int64_t> sizes,
              int64_t axis,
              const Shape& x_shape) {
  const Strides strides = contiguous_strides(x_shape);
  const Tensor* base = nullptr;
  int64_t offset = 0;  // of x in the memory of the parts
  int64_t start = 0;
  for (size_t i = 0; i < sizes.size(); start += sizes[i++]) {
    if (sizes[i] == 0) {
      continue;
    }
    const Tensor& part = parts[i];
    if (base == nullptr) {
      base = &part;
      offset = part.offset() - start * strides[axis];
    }
    bool fits = part.storage().get() == base->storage().get() && offset >= 0 &&
                part.offset() == offset + start * strides[axis];
    for (int64_t a = 0; a < part.dim() && fits; ++a) {
      fits = part.size(a) == 1 || part.strides()[a] == strides[a];
    }
    if (!fits) {
      return {};
    }
  }
  return base == nullptr ? Tensor() : alias(*base, x_shape, strides, offset);
}

struct Split {
  static constexpr OpName name = "split";
  std::vector<int64_t> sizes;
  int64_t axis;
  Shape x_shape = {};
  DType dtype{};
  TensorList forward(const Tensor& x) {
    x_shape = x.shape();
    dtype = x.dtype();
    TensorList parts;
    parts.reserve(sizes.size());
    Shape shape = x.shape();
    int64_t start = x.offset();
    for (const int64_t size : sizes) {
      shape[axis] = size;
      parts.push_back(view_of(x, alias(x, shape, x.strides(), size > 0 ? start : x.offset())));
      parts.back().impl()->one_of_several = true;
      start += size * x.strides()[axis];
    }
    return parts;
  }
  Tensor backward(const TensorList& dys, NeedsGrad /*needs*/) const {
    TensorList parts = dys;
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (!parts[i].defined()) {
        Shape shape = x_shape;
        shape[axis] = sizes[i];
        // One element of memory, whatever the part's size.
        parts[i] = alias(zeros({}, dtype), shape, Shape::filled(shape.size(), 0), 0);
      }
    }
    const Tensor whole =
        grad_enabled() || x_shape.numel() == 0 ? Tensor() : joined(parts, sizes, axis, x_shape);
    if (whole.defined()) {
      return whole;
    }
    return parts.empty() ? zeros(x_shape, dtype) : cat(parts, axis);
  }
};

}  // namespace

TensorList split(const Tensor& x, std::span<const int64_t> sizes, int64_t axis) {
  check_defined("split", x, "x");
  check<ValueError>(x.dim() > 0, "split: a scalar has no axis ", axis);
  const int64_t a = normalize_axis("split", axis, x.dim());
  int64_t total = 0;
  for (const int64_t size : sizes) {
    check<ValueError>(size >= 0, "split: negative size ", size);
    total += size;
  }
  check<ValueError>(total == x.shape()[a], "split: ", sizes.size(), " sizes with the sum ", total,
                    " do not add up to axis ", axis, " of shape ", x.shape());
  return apply_op(Split{{sizes.begin(), sizes.end()}, a}, x);
}

TensorList split(const Tensor& x, int64_t size, int64_t axis) {
  check_defined("split", x, "x");
  check<ValueError>(size >= 1, "split: the size of a part must be at least 1, got ", size);
  check<ValueError>(x.dim() > 0, "split: a scalar has no axis ", axis);
  const int64_t n = x.size(axis);
  std::vector<int64_t> sizes;
  for (int64_t start = 0; start < n; start += size) {
    sizes.push_back(std::min(size, n - start));
  }
  if (sizes.empty()) {
    sizes.push_back(0);  // one part of nothing
  }
  return split(x, std::span<const int64_t>(sizes), axis);
}

TensorList chunk(const Tensor& x, int64_t count, int64_t axis) {
  check_defined("chunk", x, "x");
  check<ValueError>(count >= 1, "chunk: the number of parts must be at least 1, got ", count);
  check<ValueError>(x.dim() > 0, "chunk: a scalar has no axis ", axis);
  return split(x, std::max<int64_t>((x.size(axis) + count - 1) / count, 1), axis);
}

Tensor flatten(const Tensor& x, int64_t first, int64_t last) {
  check_defined("flatten", x, "x");
  if (x.dim() == 0) {
    return reshape(x, {1});
  }
  const int64_t from = normalize_axis("flatten", first, x.dim());
  const int64_t to = normalize_axis("flatten", last, x.dim());
  check<ValueError>(from <= to, "flatten: axis ", first, " lies behind axis ", last, " of ",
                    x.shape());
  Shape shape;
  int64_t joined = 1;
  for (int64_t i = 0; i < x.dim(); ++i) {
    if (i < from || i > to) {
      shape.push_back(x.shape()[i]);
      continue;
    }
    joined *= x.shape()[i];
    if (i == to) {
      shape.push_back(joined);
    }
  }
  return reshape(x, shape);
}

}  // namespace tapestry
