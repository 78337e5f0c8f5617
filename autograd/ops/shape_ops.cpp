#include "autograd/ops/shape_ops.h"

#include <algorithm>
#include <optional>

#include "autograd/kernels/elementwise/strided.h"
#include "autograd/ops/map.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/view.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/check_defined.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

// Strides that show the same memory under another shape, if there are any: each run of axes that
// is contiguous in itself can be cut anew.
std::optional<Strides> view_strides(const Tensor& x, const Shape& shape) {
  if (x.is_contiguous() || x.numel() == 0) {
    return contiguous_strides(shape);
  }
  Strides out = Shape::filled(shape.size(), 0);
  int64_t to = shape.size() - 1;
  int64_t run_stride = x.strides().back();
  int64_t run_numel = 1;  // elements of the current run
  int64_t cut_numel = 1;  // of these, already given to new axes
  for (int64_t from = x.dim() - 1; from >= 0; --from) {
    run_numel *= x.shape()[from];
    const bool run_ends =
        from == 0 || (x.shape()[from - 1] != 1 && x.strides()[from - 1] != run_numel * run_stride);
    if (!run_ends) {
      continue;
    }
    while (to >= 0 && (cut_numel < run_numel || shape[to] == 1)) {
      out[to] = cut_numel * run_stride;
      cut_numel *= shape[to];
      --to;
    }
    if (cut_numel != run_numel) {
      return std::nullopt;
    }
    if (from > 0) {
      run_stride = x.strides()[from - 1];
      run_numel = 1;
      cut_numel = 1;
    }
  }
  return to < 0 ? std::optional(out) : std::nullopt;
}

struct View {
  static constexpr OpName name = "view";
  Shape shape;
  Strides strides;
  Shape x_shape;
  Tensor forward(const Tensor& x) {
    x_shape = x.shape();
    return view_of(x, alias(x, shape, strides, x.offset()));
  }
  Tensor backward(const Tensor& dy) const {
    return dy.shape() == x_shape ? dy : reshape(dy, x_shape);
  }
};

// All of x under a handle of its own, as every view has: whoever changes or marks the result does
// not do it to x.
Tensor whole(const Tensor& x) { return apply_op(View{x.shape(), x.strides(), {}}, x); }

struct Permute {
  static constexpr OpName name = "permute";
  Shape axes;  // normalized
  Tensor forward(const Tensor& x) {
    Shape shape;
    Strides strides;
    for (const int64_t axis : axes) {
      shape.push_back(x.shape()[axis]);
      strides.push_back(x.strides()[axis]);
    }
    return view_of(x, alias(x, shape, strides, x.offset()));
  }
  Tensor backward(const Tensor& dy) const {
    Shape inverse = axes;
    for (int64_t i = 0; i < axes.size(); ++i) {
      inverse[axes[i]] = i;
    }
    return permute(dy, inverse);
  }
};

struct Expand {
  static constexpr OpName name = "expand";
  Shape shape;
  Shape x_shape;
  Tensor forward(const Tensor& x) {
    x_shape = x.shape();
    return view_of(x, broadcast_view(x, shape));
  }
  Tensor backward(const Tensor& dy) const { return sum_to(dy, x_shape); }
};

Tensor slice_view(const Tensor& x, int64_t axis, int64_t start, int64_t count, int64_t step) {
  Shape shape = x.shape();
  Strides strides = x.strides();
  shape[axis] = count;
  const int64_t offset = count > 0 ? x.offset() + start * strides[axis] : x.offset();
  if (count > 1) {
    strides[axis] *= step;
  }
  return alias(x, shape, strides, offset);
}

struct SliceBackward;
Tensor slice_backward(
    const Tensor& dy, const Shape& shape, int64_t axis, int64_t start, int64_t step);

struct SliceView {
  static constexpr OpName name = "slice";
  int64_t axis, start, count, step;
  Shape x_shape;
  Tensor forward(const Tensor& x) {
    x_shape = x.shape();
    return view_of(x, slice_view(x, axis, start, count, step));
  }
  Tensor backward(const Tensor& dy) const { return slice_backward(dy, x_shape, axis, start, step); }
};

// Zeros with dy at the place of the slice.
struct SliceBackward {
  static constexpr OpName name = "slice_backward";
  Shape shape;
  int64_t axis, start, step;
  int64_t count = 0;
  Tensor forward(const Tensor& dy) {
    count = dy.shape()[axis];
    Tensor dx = zeros(shape, dy.dtype());
    copy_values(dy, slice_view(dx, axis, start, dy.shape()[axis], step));
    return dx;
  }
  Tensor backward(const Tensor& ddx) const {
    return slice(ddx, axis, start, start + count * step, step);
  }
};

Tensor slice_backward(
    const Tensor& dy, const Shape& shape, int64_t axis, int64_t start, int64_t step) {
  return apply_op(SliceBackward{shape, axis, start, step}, dy);
}

struct Clone {
  static constexpr OpName name = "clone";
  Tensor forward(const Tensor& x) { return dense_copy(x); }
  Tensor backward(const Tensor& dy) const { return dy; }
};

struct Cast {
  static constexpr OpName name = "to";
  DType dtype;
  DType from{};
  Tensor forward(const Tensor& x) {
    from = x.dtype();
    Tensor y = empty(x.shape(), dtype);
    copy_values(x, y);
    return y;
  }
  Tensor backward(const Tensor& dy) const { return to(dy, from); }
};

struct Cat {
  static constexpr OpName name = "cat";
  int64_t axis;
  std::vector<int64_t> starts;
  Tensor forward(const TensorList& tensors) {
    Shape shape = tensors[0].shape();
    shape[axis] = 0;
    for (const Tensor& t : tensors) {
      starts.push_back(shape[axis]);
      shape[axis] += t.shape()[axis];
    }
    starts.push_back(shape[axis]);
    Tensor y = empty(shape, tensors[0].dtype());
    if (std::all_of(tensors.begin(), tensors.end(),
                    [&](const Tensor& t) { return t.is_contiguous() && t.dtype() == y.dtype(); })) {
      join(tensors, y);
      return y;
    }
    for (size_t i = 0; i < tensors.size(); ++i) {
      copy_values(tensors[i], slice_view(y, axis, starts[i], starts[i + 1] - starts[i], 1));
    }
    return y;
  }
  TensorList backward(const Tensor& dy, NeedsGrad needs) const {
    TensorList out(needs.size());
    for (size_t i = 0; i < out.size(); ++i) {
      if (needs[i]) {
        out[i] = slice(dy, axis, starts[i], starts[i + 1]);
      }
    }
    return out;
  }

 private:
  // Of dense tensors, what is one matrix from `axis` on makes a row of y.
  void join(const TensorList& tensors, const Tensor& y) const {
    if (y.numel() == 0) {
      return;
    }
    int64_t rows = 1;
    for (int64_t i = 0; i < axis; ++i) {
      rows *= y.shape()[i];
    }
    std::vector<kernels::Rows> parts;
    for (const Tensor& t : tensors) {
      parts.push_back({t.raw(), t.numel() / rows * size_of(t.dtype())});
    }
    kernels::join_rows(rows, parts, y.raw());
  }
};

struct Pad {
  static constexpr OpName name = "pad";
  std::vector<Padding> padding;
  Scalar value;
  Tensor forward(const Tensor& x) {
    Shape shape = x.shape();
    for (int64_t i = 0; i < x.dim(); ++i) {
      shape[i] += padding[static_cast<size_t>(i)].before + padding[static_cast<size_t>(i)].after;
    }
    Tensor y = full(shape, value, x.dtype());
    Tensor inside = y;
    for (int64_t i = 0; i < x.dim(); ++i) {
      inside = slice_view(inside, i, padding[static_cast<size_t>(i)].before, x.shape()[i], 1);
    }
    copy_values(x, inside);
    return y;
  }
  Tensor backward(const Tensor& dy) const {
    Tensor dx = dy;
    for (int64_t i = 0; i < dy.dim(); ++i) {
      const Padding& p = padding[static_cast<size_t>(i)];
      dx = slice(dx, i, p.before, dy.shape()[i] - p.after);
    }
    return dx;
  }
};

}  // namespace

Tensor view(const Tensor& x, const Shape& shape) {
  check_defined("view", x, "x");
  const Shape full_shape = infer_shape("view", shape, x.numel());
  const std::optional<Strides> strides = view_strides(x, full_shape);
  check<ValueError>(strides.has_value(), "view: a tensor of shape ", x.shape(), " and strides ",
                    x.strides(), " cannot be seen as ", full_shape,
                    " without a copy; use reshape()");
  return apply_op(View{full_shape, *strides, {}}, x);
}

Tensor reshape(const Tensor& x, const Shape& shape) {
  check_defined("reshape", x, "x");
  if (x.shape() == shape) {
    return whole(x);
  }
  const Shape full_shape = infer_shape("reshape", shape, x.numel());
  if (const std::optional<Strides> strides = view_strides(x, full_shape)) {
    return apply_op(View{full_shape, *strides, {}}, x);
  }
  return apply_op(View{full_shape, contiguous_strides(full_shape), {}}, clone(x));
}

Tensor permute(const Tensor& x, const Shape& axes) {
  check_defined("permute", x, "x");
  check<ValueError>(axes.size() == x.dim(), "permute: ", axes.size(), " axes ", axes,
                    " for a tensor of shape ", x.shape());
  Shape normalized;
  for (const int64_t axis : axes) {
    const int64_t place = normalize_axis("permute", axis, x.dim());
    check<ValueError>(std::find(normalized.begin(), normalized.end(), place) == normalized.end(),
                      "permute: axis ", axis, " is named twice in ", axes);
    normalized.push_back(place);
  }
  return apply_op(Permute{normalized}, x);
}

Tensor transpose(const Tensor& x, int64_t axis0, int64_t axis1) {
  check_defined("transpose", x, "x");
  const int64_t a = normalize_axis("transpose", axis0, x.dim());
  const int64_t b = normalize_axis("transpose", axis1, x.dim());
  Shape axes;
  for (int64_t i = 0; i < x.dim(); ++i) {
    axes.push_back(i);
  }
  if (x.dim() > 0) {
    std::swap(axes[a], axes[b]);
  }
  return apply_op(Permute{axes}, x);
}

Tensor expand(const Tensor& x, const Shape& shape) {
  check_defined("expand", x, "x");
  const int64_t missing = shape.size() - x.dim();
  check<ValueError>(missing >= 0, "expand: shape ", shape, " has fewer axes than ", x.shape());
  Shape full_shape = shape;
  for (int64_t i = 0; i < shape.size(); ++i) {
    const int64_t have = i < missing ? 1 : x.shape()[i - missing];
    if (shape[i] == -1 && i >= missing) {
      full_shape[i] = have;
    }
    check<ValueError>(full_shape[i] >= 0 && (have == 1 || have == full_shape[i]), "expand: axis ",
                      i, " of ", x.shape(), " cannot become that of ", shape);
  }
  if (full_shape == x.shape()) {
    return whole(x);
  }
  checked_numel("expand", full_shape);
  return apply_op(Expand{full_shape, {}}, x);
}

Tensor slice(const Tensor& x, int64_t axis, int64_t start, int64_t stop, int64_t step) {
  check_defined("slice", x, "x");
  check<ValueError>(step >= 1, "slice: step must be at least 1, got ", step);
  check<IndexError>(x.dim() > 0, "slice: a scalar has no axis ", axis);
  const int64_t a = normalize_axis("slice", axis, x.dim());
  const int64_t n = x.shape()[a];
  const auto limit = [n](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + n : i, 0, n); };
  const int64_t first = limit(start);
  const int64_t last = std::max(limit(stop), first);
  const int64_t count = last > first ? (last - first - 1) / step + 1 : 0;
  if (count == n && step == 1) {
    return whole(x);
  }
  return apply_op(SliceView{a, first, count, step, {}}, x);
}

Tensor select(const Tensor& x, int64_t axis, int64_t index) {
  check_defined("select", x, "x");
  check<IndexError>(x.dim() > 0, "select: a scalar has no axis ", axis);
  const int64_t a = normalize_axis("select", axis, x.dim());
  const int64_t n = x.shape()[a];
  check<IndexError>(index >= -n && index < n, "select: index ", index, " is outside axis ", axis,
                    " of shape ", x.shape());
  const int64_t i = index < 0 ? index + n : index;
  return squeeze(slice(x, a, i, i + 1), a);
}

Tensor squeeze(const Tensor& x, std::optional<int64_t> axis) {
  check_defined("squeeze", x, "x");
  Shape shape;
  Strides strides;
  const int64_t only = axis ? normalize_axis("squeeze", *axis, x.dim()) : -1;
  for (int64_t i = 0; i < x.dim(); ++i) {
    if (x.shape()[i] != 1 || (axis && i != only)) {
      shape.push_back(x.shape()[i]);
      strides.push_back(x.strides()[i]);
    }
  }
  return apply_op(View{shape, strides, {}}, x);
}

Tensor unsqueeze(const Tensor& x, int64_t axis) {
  check_defined("unsqueeze", x, "x");
  const int64_t a = normalize_axis("unsqueeze", axis, x.dim() + 1);
  Shape shape = x.shape();
  Strides strides = x.strides();
  strides.insert(a, a < x.dim() ? x.shape()[a] * x.strides()[a] : 1);
  shape.insert(a, 1);
  return apply_op(View{shape, strides, {}}, x);
}

Tensor contiguous(const Tensor& x) {
  check_defined("contiguous", x, "x");
  return x.is_contiguous() ? x : clone(x);
}
Tensor clone(const Tensor& x) {
  check_defined("clone", x, "x");
  return apply_op(Clone{}, x);
}
Tensor to(const Tensor& x, DType dtype) {
  check_defined("to", x, "x");
  return x.dtype() == dtype ? x : apply_op(Cast{dtype}, x);
}

Tensor cat(const TensorList& tensors, int64_t axis) {
  check_defined("cat", tensors, "tensors");
  check<ValueError>(!tensors.empty(), "cat: no tensors");
  check<ValueError>(tensors[0].dim() > 0, "cat: scalars cannot be joined; use stack()");
  const int64_t a = normalize_axis("cat", axis, tensors[0].dim());
  DType dtype = tensors[0].dtype();
  for (const Tensor& t : tensors) {
    Shape expected = tensors[0].shape();
    if (t.dim() == expected.size()) {
      expected[a] = t.shape()[a];
    }
    check<ValueError>(t.shape() == expected, "cat: shapes ", tensors[0].shape(), " and ", t.shape(),
                      " differ outside axis ", axis);
    dtype = promote(dtype, t.dtype());
  }
  TensorList same;
  for (const Tensor& t : tensors) {
    same.push_back(t.to(dtype));
  }
  return apply_op(Cat{a, {}}, same);
}

Tensor stack(const TensorList& tensors, int64_t axis) {
  check_defined("stack", tensors, "tensors");
  check<ValueError>(!tensors.empty(), "stack: no tensors");
  TensorList raised;
  for (const Tensor& t : tensors) {
    check<ValueError>(t.shape() == tensors[0].shape(), "stack: shapes ", tensors[0].shape(),
                      " and ", t.shape(), " differ");
    raised.push_back(unsqueeze(t, axis));
  }
  return cat(raised, axis);
}

Tensor pad(const Tensor& x, std::span<const Padding> padding, Scalar value) {
  check_defined("pad", x, "x");
  check<ValueError>(static_cast<int64_t>(padding.size()) == x.dim(), "pad: ", padding.size(),
                    " paddings for a tensor of shape ", x.shape());
  for (const Padding& p : padding) {
    check<ValueError>(p.before >= 0 && p.after >= 0, "pad: negative padding (", p.before, ", ",
                      p.after, ")");
  }
  Shape padded = x.shape();
  for (int64_t i = 0; i < x.dim(); ++i) {
    const Padding& p = padding[static_cast<size_t>(i)];
    check<ValueError>(!__builtin_add_overflow(padded[i], p.before, &padded[i]) &&
                          !__builtin_add_overflow(padded[i], p.after, &padded[i]),
                      "pad: axis ", i, " of shape ", x.shape(), " cannot have ", p.before, " and ",
                      p.after, " more entries");
  }
  checked_numel("pad", padded);
  return apply_op(Pad{{padding.begin(), padding.end()}, value}, x);
}

// The methods of Tensor that are recorded.
Tensor Tensor::view(const Shape& shape) const { return tapestry::view(*this, shape); }
Tensor Tensor::reshape(const Shape& shape) const { return tapestry::reshape(*this, shape); }
Tensor Tensor::permute(const Shape& axes) const { return tapestry::permute(*this, axes); }
Tensor Tensor::transpose(int64_t axis0, int64_t axis1) const {
  return tapestry::transpose(*this, axis0, axis1);
}
Tensor Tensor::t() const { return tapestry::transpose(*this, -2, -1); }
Tensor Tensor::expand(const Shape& shape) const { return tapestry::expand(*this, shape); }
Tensor Tensor::slice(int64_t axis, int64_t start, int64_t stop, int64_t step) const {
  return tapestry::slice(*this, axis, start, stop, step);
}
Tensor Tensor::select(int64_t axis, int64_t index) const {
  return tapestry::select(*this, axis, index);
}
Tensor Tensor::squeeze(std::optional<int64_t> axis) const { return tapestry::squeeze(*this, axis); }
Tensor Tensor::unsqueeze(int64_t axis) const { return tapestry::unsqueeze(*this, axis); }
Tensor Tensor::contiguous() const { return tapestry::contiguous(*this); }
Tensor Tensor::clone() const { return tapestry::clone(*this); }
Tensor Tensor::to(DType dtype) const { return tapestry::to(*this, dtype); }

}  // namespace tapestry
