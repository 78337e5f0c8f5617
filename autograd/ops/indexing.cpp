#include "autograd/ops/indexing.h"

#include <algorithm>

#include "autograd/kernels/index.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/map.h"
#include "autograd/ops/reduce_impl.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/check_defined.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

// "[1, 0]": coordinates of an element of a tensor of that shape.
Shape coordinates_of(int64_t position, const Shape& shape) {
  Shape out = shape;
  for (int64_t i = shape.size() - 1; i >= 0; --i) {
    out[i] = position % shape[i];
    position /= shape[i];
  }
  return out;
}

Tensor integer_index(std::string_view op, const Tensor& index) {
  check<TypeError>(is_index(index.dtype()), op, ": indices must be int64 or int32, got ",
                   name_of(index.dtype()));
  return dense(index.detach().to(kInt64));
}

void check_range(
    std::string_view op, const Tensor& index, int64_t low, int64_t size, int64_t axis) {
  const int64_t* values = index.data<int64_t>();
  const int64_t count = index.numel();
  for (int64_t i = 0; i < count; ++i) {
    check<IndexError>(values[i] >= low && values[i] < size, op, ": index ", values[i],
                      " at position ", coordinates_of(i, index.shape()), " is outside [", low, ", ",
                      size, ") of axis ", axis);
  }
}

// As dense int64, in range.
Tensor checked_index(std::string_view op, const Tensor& index, int64_t size, int64_t axis) {
  Tensor out = integer_index(op, index);
  check_range(op, out, 0, size, axis);
  return out;
}

void check_same_dtype(std::string_view op, const Tensor& x, const Tensor& src) {
  check<TypeError>(x.dtype() == src.dtype(), op, ": x is ", name_of(x.dtype()), ", src is ",
                   name_of(src.dtype()), "; convert one of them with to()");
}

// index fits x: the same number of axes, nowhere larger except on `axis`.
void check_index_shape(std::string_view op, const Tensor& x, const Tensor& index, int64_t axis) {
  bool fits = index.dim() == x.dim();
  for (int64_t i = 0; fits && i < x.dim(); ++i) {
    fits = i == axis || index.shape()[i] <= x.shape()[i] || index.numel() == 0;
  }
  check<ValueError>(fits, op, ": index ", index.shape(), " must have as many axes as x ", x.shape(),
                    " and be no larger except on axis ", axis);
}

int64_t axis_size(const Tensor& x, int64_t axis) { return x.dim() == 0 ? 1 : x.shape()[axis]; }

// Kernels see a scalar as a vector of one.
struct Loop {
  Shape sizes;
  Strides strides;
  Loop(const Shape& index_shape, const Strides& indexed_strides)
      : sizes(index_shape), strides(indexed_strides) {
    if (sizes.empty()) {
      sizes.push_back(1);
      strides.push_back(1);
    }
  }
  kernels::AxisIndex at(int64_t axis, const Tensor& index) const {
    return {static_cast<int>(sizes.size()), sizes.begin(), static_cast<int>(axis),
            index.data<int64_t>(), strides.begin()};
  }
};

kernels::RowIndex rows_at(const AxisView& view, const Tensor& index) {
  return {view.outer, view.n, view.inner, index.numel(), index.data<int64_t>()};
}

bool is_half(DType dtype) { return dtype == kFloat16 || dtype == kBFloat16; }

// Sums of 16-bit floats go through float32.
Tensor summed_in_float(const Tensor& target, const Tensor& src, auto add_into) {
  const DType dtype = is_half(target.dtype()) ? kFloat32 : target.dtype();
  const Tensor sum = target.dtype() == dtype ? target : target.to(dtype);
  add_into(sum, dense(src.to(dtype)));
  return sum.to(target.dtype());
}

// The result of an op that has saved `used`, a converted copy of the index that was given.
Tensor watched(const Tensor& y, const Tensor& index, const Tensor& used) {
  if (used.storage() != index.storage()) {
    watch_versions(y, {index});
  }
  return y;
}

// -------------------------------------------------------------------------------- along one axis

struct Gather {
  static constexpr OpName name = "gather";
  int64_t axis;
  SavedTensor index;
  Shape x_shape;
  Tensor forward(const Tensor& x, const Tensor& index_) {
    index.save(index_);
    watch_input(x);
    x_shape = x.shape();
    Tensor y = empty(index_.shape(), x.dtype());
    const Loop loop(index_.shape(), x.strides());
    kernels::gather(size_of(x.dtype()), loop.at(axis, index_), x.raw(), y.raw());
    return y;
  }
  std::array<Tensor, 2> backward(const Tensor& dy, NeedsGrad /*needs*/) const {
    return {gather_backward(dy, index, x_shape, axis), Tensor()};
  }
};

Tensor add_scattered(const Tensor& target, int64_t axis, const Tensor& index, const Tensor& src) {
  return summed_in_float(target, src, [&](const Tensor& sum, const Tensor& terms) {
    const Loop loop(index.shape(), sum.strides());
    kernels::scatter_add(sum.dtype(), loop.at(axis, index), terms.raw(), sum.raw());
  });
}

struct GatherBackward {
  static constexpr OpName name = "gather_backward";
  Shape shape;
  int64_t axis;
  SavedTensor index;
  Tensor forward(const Tensor& dy, const Tensor& index_) {
    index.save(index_);
    return add_scattered(zeros(shape, dy.dtype()), axis, index_, dy);
  }
  std::array<Tensor, 2> backward(const Tensor& ddx, NeedsGrad /*needs*/) const {
    return {apply_op(Gather{axis, {}, {}}, ddx, index.get()), Tensor()};
  }
};

struct ScatterAdd {
  static constexpr OpName name = "scatter_add";
  int64_t axis;
  SavedTensor index;
  Tensor forward(const Tensor& x, const Tensor& index_, const Tensor& src) {
    index.save(index_);
    return add_scattered(dense_copy(x), axis, index_, src);
  }
  std::array<Tensor, 3> backward(const Tensor& dy, NeedsGrad needs) const {
    return {dy, Tensor(), needs[2] ? gather(dy, axis, index) : Tensor()};
  }
};

void scatter_into(const Tensor& y, int64_t axis, const Tensor& index, const Tensor& src) {
  const Loop loop(index.shape(), y.strides());
  kernels::scatter(size_of(y.dtype()), loop.at(axis, index), src.raw(), y.raw());
}

// Which elements of a source survived being written one after the other.
Tensor survivors(const Shape& x_shape, int64_t axis, const Tensor& index) {
  const NoGradGuard guard;
  const Tensor order = arange(index.numel()).reshape(index.shape());
  const Tensor last = zeros(x_shape, kInt64);
  scatter_into(last, axis, index, order);
  return eq(gather(last, axis, index), order);
}

struct Scatter {
  static constexpr OpName name = "scatter";
  int64_t axis;
  SavedTensor index;
  Shape x_shape;
  Tensor forward(const Tensor& x, const Tensor& index_, const Tensor& src) {
    index.save(index_);
    x_shape = x.shape();
    Tensor y = dense_copy(x);
    scatter_into(y, axis, index_, dense(src));
    return y;
  }
  std::array<Tensor, 3> backward(const Tensor& dy, NeedsGrad needs) const {
    const Tensor places = index;
    std::array<Tensor, 3> out;
    if (needs[0]) {
      out[0] = scatter(dy, axis, places, 0.0);
    }
    if (needs[2]) {
      out[2] =
          where(survivors(x_shape, axis, places), gather(dy, axis, places), scalar(0, dy.dtype()));
    }
    return out;
  }
};

// Rows of an axis, all of each.
struct IndexSelect {
  static constexpr OpName name = "index_select";
  int64_t axis;
  SavedTensor index;
  Shape x_shape;
  Tensor forward(const Tensor& x, const Tensor& index_) {
    index.save(index_);
    x_shape = x.shape();
    const AxisView view = around_axis(x, axis);
    Shape shape = x.shape();
    if (x.dim() > 0) {
      shape[axis] = index_.numel();
    }
    Tensor y = empty(shape, x.dtype());
    kernels::index_rows(size_of(x.dtype()), rows_at(view, index_), view.tensor.raw(), y.raw());
    return y;
  }
  std::array<Tensor, 2> backward(const Tensor& dy, NeedsGrad /*needs*/) const;
};

Tensor add_rows(const Tensor& target, int64_t axis, const Tensor& index, const Tensor& src) {
  return summed_in_float(target, src, [&](const Tensor& sum, const Tensor& terms) {
    const AxisView view = around_axis(sum, axis);
    kernels::add_rows(sum.dtype(), rows_at(view, index), terms.raw(), sum.raw());
  });
}

struct IndexSelectBackward {
  static constexpr OpName name = "index_select_backward";
  Shape shape;
  int64_t axis;
  SavedTensor index;
  Tensor forward(const Tensor& dy, const Tensor& index_) {
    index.save(index_);
    return add_rows(zeros(shape, dy.dtype()), axis, index_, dy);
  }
  std::array<Tensor, 2> backward(const Tensor& ddx, NeedsGrad /*needs*/) const {
    return {index_select(ddx, axis, index), Tensor()};
  }
};

std::array<Tensor, 2> IndexSelect::backward(const Tensor& dy, NeedsGrad /*needs*/) const {
  return {apply_op(IndexSelectBackward{x_shape, axis, {}}, dy, index.get()), Tensor()};
}

struct IndexAdd {
  static constexpr OpName name = "index_add";
  int64_t axis;
  SavedTensor index;
  Tensor forward(const Tensor& x, const Tensor& index_, const Tensor& src) {
    index.save(index_);
    if (src.requires_grad()) {
      watch_input(src);
    }
    return add_rows(dense_copy(x), axis, index_, src);
  }
  std::array<Tensor, 3> backward(const Tensor& dy, NeedsGrad needs) const {
    return {dy, Tensor(), needs[2] ? index_select(dy, axis, index) : Tensor()};
  }
};

struct IndexCopy {
  static constexpr OpName name = "index_copy";
  int64_t axis;
  SavedTensor index;
  Shape src_shape;
  Tensor forward(const Tensor& x, const Tensor& index_, const Tensor& src) {
    index.save(index_);
    src_shape = src.shape();
    if (src.requires_grad()) {
      watch_input(src);
    }
    Tensor y = dense_copy(x);
    put(y, index_, src);
    return y;
  }
  std::array<Tensor, 3> backward(const Tensor& dy, NeedsGrad needs) const {
    const Tensor places = index;
    std::array<Tensor, 3> out;
    if (needs[0]) {
      out[0] = index_copy(dy, axis, places, zeros(src_shape, dy.dtype()));
    }
    if (needs[2]) {
      // Only the last of several rows for one place survived.
      const Tensor alive = survivors({axis_size(dy, axis)}, 0, places.reshape({places.numel()}));
      Shape column = Shape::filled(dy.dim(), 1);
      if (!column.empty()) {
        column[axis] = places.numel();
      }
      out[2] = where(alive.reshape(column), index_select(dy, axis, places), scalar(0, dy.dtype()));
    }
    return out;
  }

 private:
  void put(const Tensor& y, const Tensor& places, const Tensor& src) const {
    const AxisView view = around_axis(y, axis);
    const Tensor rows = dense(src);
    kernels::put_rows(size_of(y.dtype()), rows_at(view, places), rows.raw(), y.raw());
  }
};

// A vector of indices into an axis.
Tensor row_index(std::string_view op, const Tensor& x, int64_t axis, const Tensor& index) {
  check<ValueError>(index.dim() <= 1, op, ": the index must be a vector, its shape is ",
                    index.shape());
  check<ValueError>(x.dim() > 0 || index.numel() == 1, op, ": a scalar takes one index, got ",
                    index.numel());
  return checked_index(op, index, axis_size(x, axis), axis);
}

void check_rows(
    std::string_view op, const Tensor& x, int64_t axis, const Tensor& index, const Tensor& src) {
  check_same_dtype(op, x, src);
  Shape expected = x.shape();
  if (x.dim() > 0) {
    expected[axis] = index.numel();
  }
  check<ValueError>(src.shape() == expected, op, ": src must have shape ", expected, " for x ",
                    x.shape(), " and ", index.numel(), " indices on axis ", axis, ", it has ",
                    src.shape());
}

// The part of src that the index covers.
Tensor covered(std::string_view op, const Tensor& src, const Tensor& index) {
  bool covers = src.dim() == index.dim();
  for (int64_t i = 0; covers && i < src.dim(); ++i) {
    covers = src.shape()[i] >= index.shape()[i];
  }
  check<ValueError>(covers, op, ": src ", src.shape(), " does not cover index ", index.shape());
  Tensor part = src;
  for (int64_t i = 0; i < src.dim(); ++i) {
    part = slice(part, i, 0, index.shape()[i]);
  }
  return part;
}

// -------------------------------------------------------------------------------- by coordinates

// The leading axes of x flattened into one, and where in it the coordinates point.
struct Coordinates {
  Tensor rows;   // int64 vector
  Shape shape;   // of all index tensors together
  Shape flat;    // x as [rows, rest of the axes]
  Shape result;  // shape + rest
};

Coordinates resolve(std::string_view op, const Tensor& x, const TensorList& indices) {
  const auto count = static_cast<int64_t>(indices.size());
  check<ValueError>(count > 0 && count <= x.dim(), op, ": ", count,
                    " index tensors for a tensor of shape ", x.shape());
  Coordinates out;
  for (const Tensor& index : indices) {
    out.shape = broadcast_shapes(op, out.shape, index.shape());
  }
  int64_t rows = 1;
  for (int64_t axis = 0; axis < count; ++axis) {
    const int64_t size = x.shape()[axis];
    const Tensor index = integer_index(op, indices[static_cast<size_t>(axis)]);
    check_range(op, index, -size, size, axis);
    const Tensor wrapped = where(lt(index, 0), add(index, size), index);
    out.rows = axis == 0 ? wrapped : add(mul(out.rows, size), wrapped);
    rows *= size;
  }
  out.rows = out.rows.expand(out.shape).reshape({out.shape.numel()});
  out.flat.push_back(rows);
  out.result = out.shape;
  for (int64_t axis = count; axis < x.dim(); ++axis) {
    out.flat.push_back(x.shape()[axis]);
    out.result.push_back(x.shape()[axis]);
  }
  return out;
}

struct NonZero {
  static constexpr OpName name = "nonzero";
  static constexpr bool differentiable = false;
  Tensor forward(const Tensor& x) {
    const std::vector<bool> hits = x.to_vector<bool>();
    const auto count = static_cast<int64_t>(std::count(hits.begin(), hits.end(), true));
    Tensor y = empty({count, x.dim()}, kInt64);
    auto* out = y.data<int64_t>();
    for (size_t i = 0; i < hits.size(); ++i) {
      if (hits[i]) {
        const Shape place = coordinates_of(static_cast<int64_t>(i), x.shape());
        out = std::copy(place.begin(), place.end(), out);
      }
    }
    return y;
  }
};

struct OneHot {
  static constexpr OpName name = "one_hot";
  static constexpr bool differentiable = false;
  int64_t num_classes;
  Tensor forward(const Tensor& index) {
    Shape shape = index.shape();
    shape.push_back(num_classes);
    Tensor y = zeros(shape, kInt64);
    for (int64_t i = 0; i < index.numel(); ++i) {
      y.data<int64_t>()[i * num_classes + index.data<int64_t>()[i]] = 1;
    }
    return y;
  }
};

}  // namespace

Tensor gather_backward(const Tensor& src, const Tensor& index, const Shape& shape, int64_t axis) {
  return apply_op(GatherBackward{shape, axis, {}}, src, index);
}

Tensor gather(const Tensor& x, int64_t axis, const Tensor& index) {
  check_defined("gather", x, "x", index, "index");
  const int64_t a = normalize_axis("gather", axis, x.dim());
  check_index_shape("gather", x, index, a);
  const Tensor places = checked_index("gather", index, axis_size(x, a), a);
  return watched(apply_op(Gather{a, {}, {}}, x, places), index, places);
}

Tensor scatter(const Tensor& x, int64_t axis, const Tensor& index, const Tensor& src) {
  check_defined("scatter", x, "x", index, "index", src, "src");
  const int64_t a = normalize_axis("scatter", axis, x.dim());
  check_index_shape("scatter", x, index, a);
  check_same_dtype("scatter", x, src);
  const Tensor places = checked_index("scatter", index, axis_size(x, a), a);
  return watched(apply_op(Scatter{a, {}, {}}, x, places, covered("scatter", src, index)), index,
                 places);
}

Tensor scatter(const Tensor& x, int64_t axis, const Tensor& index, Scalar value) {
  check_defined("scatter", x, "x", index, "index");
  return scatter(x, axis, index, scalar(value, x.dtype()).expand(index.shape()));
}

Tensor scatter_add(const Tensor& x, int64_t axis, const Tensor& index, const Tensor& src) {
  check_defined("scatter_add", x, "x", index, "index", src, "src");
  const int64_t a = normalize_axis("scatter_add", axis, x.dim());
  check_index_shape("scatter_add", x, index, a);
  check_same_dtype("scatter_add", x, src);
  const Tensor places = checked_index("scatter_add", index, axis_size(x, a), a);
  return watched(apply_op(ScatterAdd{a, {}}, x, places, covered("scatter_add", src, index)), index,
                 places);
}

Tensor index_select(const Tensor& x, int64_t axis, const Tensor& index) {
  check_defined("index_select", x, "x", index, "index");
  const int64_t a = normalize_axis("index_select", axis, x.dim());
  const Tensor rows = row_index("index_select", x, a, index);
  return watched(apply_op(IndexSelect{a, {}, {}}, x, rows), index, rows);
}

Tensor index_add(const Tensor& x, int64_t axis, const Tensor& index, const Tensor& src) {
  check_defined("index_add", x, "x", index, "index", src, "src");
  const int64_t a = normalize_axis("index_add", axis, x.dim());
  const Tensor rows = row_index("index_add", x, a, index);
  check_rows("index_add", x, a, rows, src);
  return watched(apply_op(IndexAdd{a, {}}, x, rows, src), index, rows);
}

Tensor index_copy(const Tensor& x, int64_t axis, const Tensor& index, const Tensor& src) {
  check_defined("index_copy", x, "x", index, "index", src, "src");
  const int64_t a = normalize_axis("index_copy", axis, x.dim());
  const Tensor rows = row_index("index_copy", x, a, index);
  check_rows("index_copy", x, a, rows, src);
  return watched(apply_op(IndexCopy{a, {}, {}}, x, rows, src), index, rows);
}

Tensor index(const Tensor& x, const TensorList& indices) {
  check_defined("index", x, "x", indices, "indices");
  const Coordinates at = resolve("index", x, indices);
  const Tensor y = index_select(x.reshape(at.flat), 0, at.rows).reshape(at.result);
  for (const Tensor& places : indices) {
    watch_versions(y, {places});
  }
  return y;
}

Tensor index_put(const Tensor& x,
                 const TensorList& indices,
                 const Tensor& values,
                 bool accumulate) {
  check_defined("index_put", x, "x", indices, "indices", values, "values");
  const Coordinates at = resolve("index_put", x, indices);
  check_same_dtype("index_put", x, values);
  check<ValueError>(broadcast_shapes("index_put", values.shape(), at.result) == at.result,
                    "index_put: values ", values.shape(), " do not broadcast to ", at.result);
  Shape rows = at.flat;
  rows[0] = at.rows.numel();
  const Tensor src = values.expand(at.result).reshape(rows);
  const Tensor flat = x.reshape(at.flat);
  const Tensor y =
      (accumulate ? index_add(flat, 0, at.rows, src) : index_copy(flat, 0, at.rows, src))
          .reshape(x.shape());
  for (const Tensor& places : indices) {
    watch_versions(y, {places});
  }
  return y;
}

Tensor nonzero(const Tensor& x) {
  check_defined("nonzero", x, "x");
  return apply_op(NonZero{}, x.detach());
}

Tensor masked_select(const Tensor& x, const Tensor& mask) {
  check_defined("masked_select", x, "x", mask, "mask");
  check<TypeError>(mask.dtype() == kBool, "masked_select: the mask must be bool, got ",
                   name_of(mask.dtype()));
  check<ValueError>(broadcast_shapes("masked_select", x.shape(), mask.shape()) == x.shape(),
                    "masked_select: the mask ", mask.shape(), " does not broadcast to ", x.shape());
  const Tensor flat_mask = mask.expand(x.shape()).reshape({x.numel()});
  const Tensor y = index_select(x.reshape({x.numel()}), 0, nonzero(flat_mask).reshape({-1}));
  watch_versions(y, {mask});
  return y;
}

Tensor one_hot(const Tensor& index, int64_t num_classes) {
  check_defined("one_hot", index, "index");
  const Tensor values = integer_index("one_hot", index);
  int64_t classes = num_classes;
  if (num_classes == -1) {
    check<ValueError>(values.numel() > 0,
                      "one_hot: the number of classes cannot be told from an empty tensor");
    classes = static_cast<int64_t>(max(values).item()) + 1;
  }
  check<ValueError>(classes >= 1, "one_hot: the number of classes must be positive, got ", classes);
  check_range("one_hot", values, 0, classes, index.dim());
  return apply_op(OneHot{classes}, values);
}

}  // namespace tapestry
