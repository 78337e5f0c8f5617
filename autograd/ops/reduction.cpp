#include "autograd/ops/reduction.h"

#include <algorithm>

#include "autograd/kernels/reduce.h"
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

Tensor reduce(kernels::ReduceOp op, const Tensor& x, const Shape& axes, bool keepdim) {
  const AxisView view = bring_together(x, axes);
  Tensor y = empty(reduced_shape(x.shape(), axes, keepdim), x.dtype());
  kernels::reduce(op, x.dtype(), view.outer, view.n, view.inner, view.tensor.raw(), y.raw());
  return y;
}

// y or dy with the reduced axes put back as size 1.
Tensor restore_axes(const Tensor& y, const Shape& x_shape, const Shape& axes) {
  return y.reshape(reduced_shape(x_shape, axes, true));
}

struct Sum {
  static constexpr OpName name = "sum";
  Shape axes;  // normalized
  bool keepdim;
  Shape x_shape;
  Tensor forward(const Tensor& x) {
    x_shape = x.shape();
    return reduce(kernels::ReduceOp::kSum, x, axes, keepdim);
  }
  Tensor backward(const Tensor& dy) const {
    return restore_axes(dy, x_shape, axes).expand(x_shape);
  }
};

// For each element the product of all others along the last axis, by products over a square whose
// diagonal is 1. Differentiable to any order.
Tensor products_of_others(const Tensor& x) {
  const int64_t n = x.shape().back();
  Shape square = x.shape();
  square.push_back(n);
  const Tensor diagonal = eye(n, n, kFloat32).to(kBool);
  return prod(masked_fill(unsqueeze(x, -2).expand(square), diagonal, 1), {-1});
}

struct Prod {
  static constexpr OpName name = "prod";
  Shape axes;  // normalized
  bool keepdim;
  SavedTensor x, y;
  Tensor forward(const Tensor& x_) {
    x.save(x_);
    return y.save_output(reduce(kernels::ReduceOp::kProd, x_, axes, keepdim));
  }
  Tensor backward(const Tensor& dy) const {
    const Tensor factors = x;
    const Tensor product = y;
    const Tensor wide_dy = restore_axes(dy, factors.shape(), axes);
    const Tensor is_zero = eq(factors, 0);
    if (any(is_zero).item() == 0) {
      return mul(wide_dy, div(restore_axes(product, factors.shape(), axes), factors));
    }
    if (grad_enabled()) {
      return mul(wide_dy, others(factors));
    }
    // One zero: only it has a gradient, the product of the rest. Two or more: none has.
    const Tensor count = sum(is_zero, axes, true);
    const Tensor rest = prod(masked_fill(factors, is_zero, 1), axes, true);
    const Tensor lonely = logical_and(is_zero, eq(count, 1));
    const Tensor none = eq(count, 0);
    const Tensor slope =
        where(none, div(rest, factors), where(lonely, rest, scalar(0, factors.dtype())));
    return mul(wide_dy, slope);
  }

 private:
  Tensor others(const Tensor& factors) const {
    Shape order;
    Shape inverse = Shape::filled(factors.dim(), 0);
    for (int64_t i = 0; i < factors.dim(); ++i) {
      if (std::find(axes.begin(), axes.end(), i) == axes.end()) {
        order.push_back(i);
      }
    }
    Shape flat;
    for (const int64_t i : order) {
      flat.push_back(factors.shape()[i]);
    }
    flat.push_back(1);
    for (const int64_t i : axes) {
      order.push_back(i);
      flat.back() *= factors.shape()[i];
    }
    for (int64_t i = 0; i < order.size(); ++i) {
      inverse[order[i]] = i;
    }
    const Tensor together = factors.permute(order);
    return products_of_others(together.reshape(flat)).reshape(together.shape()).permute(inverse);
  }
};

// Values and indices along one axis.
template <bool kMax>
struct Choose {
  static constexpr OpName name = kMax ? "max" : "min";
  int64_t axis;  // normalized
  bool keepdim;
  SavedTensor indices;
  Shape x_shape;
  std::array<Tensor, 2> forward(const Tensor& x) {
    x_shape = x.shape();
    const AxisView view = around_axis(x, axis);
    const Shape axes = x.dim() > 0 ? Shape{axis} : Shape{};
    const Shape wide_shape = reduced_shape(x.shape(), axes, true);
    const Tensor values = empty(wide_shape, x.dtype());
    const Tensor places = empty(wide_shape, kInt64);
    if (values.numel() > 0) {
      kernels::arg_reduce(kMax, x.dtype(), view.outer, view.n, view.inner, view.tensor.raw(),
                          values.raw(), places.data<int64_t>());
    }
    indices.save(places);
    const Shape shape = reduced_shape(x.shape(), axes, keepdim);
    return {alias(values, shape, contiguous_strides(shape), 0),
            alias(places, shape, contiguous_strides(shape), 0)};
  }
  Tensor backward(const TensorList& dys, NeedsGrad /*needs*/) const {
    const Tensor places = indices;
    return gather_backward(dys[0].reshape(places.shape()), places, x_shape, axis);
  }
};

template <bool kMax>
struct Extreme {
  static constexpr OpName name = kMax ? "amax" : "amin";
  Shape axes;  // normalized
  bool keepdim;
  SavedTensor x, y;
  Tensor forward(const Tensor& x_) {
    x.save(x_);
    const Tensor result =
        reduce(kMax ? kernels::ReduceOp::kMax : kernels::ReduceOp::kMin, x_, axes, keepdim);
    return y.save_output(result);
  }
  Tensor backward(const Tensor& dy) const {
    const Tensor input = x.get().detach();
    const Tensor best = restore_axes(y.get().detach(), input.shape(), axes);
    const Tensor winners = eq(input, best).to(dy.dtype());
    const Tensor share = div(restore_axes(dy, input.shape(), axes), sum(winners, axes, true));
    return mul(winners, share);
  }
};

template <bool kMax>
struct ArgExtreme {
  static constexpr OpName name = kMax ? "argmax" : "argmin";
  static constexpr bool differentiable = false;
  int64_t axis;
  bool keepdim;
  Tensor forward(const Tensor& x) {
    const AxisView view = around_axis(x, axis);
    Tensor y =
        empty(reduced_shape(x.shape(), x.dim() > 0 ? Shape{axis} : Shape{}, keepdim), kInt64);
    if (y.numel() > 0) {
      kernels::arg_reduce(kMax, x.dtype(), view.outer, view.n, view.inner, view.tensor.raw(),
                          nullptr, y.data<int64_t>());
    }
    return y;
  }
};

template <bool kAny>
struct Quantifier {
  static constexpr OpName name = kAny ? "any" : "all";
  static constexpr bool differentiable = false;
  Shape axes;  // normalized
  bool keepdim;
  Tensor forward(const Tensor& x) {
    const AxisView view = bring_together(x, axes);
    Tensor y = empty(reduced_shape(x.shape(), axes, keepdim), kBool);
    kernels::reduce_bool(kAny, x.dtype(), view.outer, view.n, view.inner, view.tensor.raw(),
                         y.data<bool>());
    return y;
  }
};

struct CumSum {
  static constexpr OpName name = "cumsum";
  int64_t axis;
  bool reverse;
  Tensor forward(const Tensor& x) {
    const AxisView view = around_axis(x, axis);
    Tensor y = empty_like(x);
    kernels::cumsum(x.dtype(), view.outer, view.n, view.inner, view.tensor.raw(), y.raw(), reverse);
    return y;
  }
  Tensor backward(const Tensor& dy) const { return apply_op(CumSum{axis, !reverse}, dy); }
};

// Sums and products of integers and bool are in int64.
Tensor widen_integers(const Tensor& x) { return is_floating(x.dtype()) ? x : x.to(kInt64); }

// float16 and bfloat16 go through float32, so that only the result is rounded.
Tensor widen_half(const Tensor& x) {
  return x.dtype() == kFloat16 || x.dtype() == kBFloat16 ? x.to(kFloat32) : x;
}

int64_t count_over(const Tensor& x, const Shape& axes) {
  int64_t count = 1;
  for (const int64_t axis : axes) {
    count *= x.shape()[axis];
  }
  return count;
}

void check_not_empty(std::string_view op, const Tensor& x, const Shape& axes) {
  check<ValueError>(count_over(x, axes) > 0, op, ": there is nothing to choose from along axes ",
                    axes, " of shape ", x.shape());
}

template <bool kMax>
ValuesAndIndices choose(const Tensor& x, int64_t axis, bool keepdim) {
  constexpr std::string_view kName = Choose<kMax>::name;
  const int64_t a = normalize_axis(kName, axis, x.dim());
  check_not_empty(kName, x, x.dim() > 0 ? Shape{a} : Shape{});
  auto [values, indices] = apply_op(Choose<kMax>{a, keepdim, {}, {}}, x);
  return {values, indices};
}

template <bool kMax>
Tensor choose(const Tensor& x) {
  const Tensor largest = choose<kMax>(x.reshape({x.numel()}), 0, false).values;
  watch_versions(largest, {x, largest});
  return largest;
}

template <bool kMax>
Tensor extreme(const Tensor& x, const Shape& axes, bool keepdim) {
  constexpr std::string_view kName = Extreme<kMax>::name;
  const Shape normalized = normalize_axes(kName, axes, x.dim());
  check_not_empty(kName, x, normalized);
  return apply_op(Extreme<kMax>{normalized, keepdim, {}, {}}, x);
}

template <bool kMax>
Tensor arg_extreme(const Tensor& x, std::optional<int64_t> axis, bool keepdim) {
  constexpr std::string_view kName = ArgExtreme<kMax>::name;
  if (!axis) {
    const Tensor flat = x.detach().reshape({x.numel()});
    const Tensor y = arg_extreme<kMax>(flat, 0, false);
    return keepdim ? y.reshape(Shape::filled(x.dim(), 1)) : y;
  }
  const int64_t a = normalize_axis(kName, *axis, x.dim());
  check_not_empty(kName, x, x.dim() > 0 ? Shape{a} : Shape{});
  return apply_op(ArgExtreme<kMax>{a, keepdim}, x);
}

}  // namespace

AxisView bring_together(const Tensor& x, const Shape& axes) {
  // Adjacent reduced axes of a contiguous tensor need no copy: [outer, n, inner].
  const bool adjacent = axes.empty() || axes.back() - axes[0] + 1 == axes.size();
  AxisView out;
  Shape order;
  for (int64_t i = 0; i < x.dim(); ++i) {
    if (std::find(axes.begin(), axes.end(), i) == axes.end()) {
      order.push_back(i);
    }
  }
  if (adjacent && x.is_contiguous()) {
    out.tensor = x;
    for (int64_t i = 0; i < x.dim(); ++i) {
      (axes.empty() || i < axes[0] ? out.outer
       : i > axes.back()           ? out.inner
                                   : out.n) *= x.shape()[i];
    }
    return out;
  }
  for (const int64_t i : order) {
    out.outer *= x.shape()[i];
  }
  Shape shape;
  Strides strides;
  for (const int64_t i : axes) {
    out.n *= x.shape()[i];
    order.push_back(i);
  }
  for (const int64_t i : order) {
    shape.push_back(x.shape()[i]);
    strides.push_back(x.strides()[i]);
  }
  out.tensor = dense(alias(x, shape, strides, x.offset()));
  return out;
}

AxisView around_axis(const Tensor& x, int64_t axis) {
  AxisView out;
  out.tensor = dense(x);
  for (int64_t i = 0; i < x.dim(); ++i) {
    (i < axis ? out.outer : i > axis ? out.inner : out.n) *= x.shape()[i];
  }
  return out;
}

Tensor sum(const Tensor& x, const Shape& axes, bool keepdim) {
  check_defined("sum", x, "x");
  return apply_op(Sum{normalize_axes("sum", axes, x.dim()), keepdim, {}}, widen_integers(x));
}

Tensor mean(const Tensor& x, const Shape& axes, bool keepdim) {
  check_defined("mean", x, "x");
  check_floating("mean", x.dtype());
  const int64_t count = count_over(x, normalize_axes("mean", axes, x.dim()));
  const Tensor y = div(sum(widen_half(x), axes, keepdim), static_cast<double>(count)).to(x.dtype());
  watch_versions(y, {x});
  return y;
}

Tensor prod(const Tensor& x, const Shape& axes, bool keepdim) {
  check_defined("prod", x, "x");
  const Shape normalized = normalize_axes("prod", axes, x.dim());
  return apply_op(Prod{normalized, keepdim, {}, {}}, widen_integers(x));
}

Tensor var(const Tensor& x, const Shape& axes, double correction, bool keepdim) {
  check_defined("var", x, "x");
  check_floating("var", x.dtype());
  const int64_t count = count_over(x, normalize_axes("var", axes, x.dim()));
  const Tensor wide = widen_half(x);
  const Tensor deviation = sub(wide, mean(wide, axes, true));
  const double divisor = std::max(0.0, static_cast<double>(count) - correction);
  const Tensor y = div(sum(square(deviation), axes, keepdim), divisor).to(x.dtype());
  watch_versions(y, {x});
  return y;
}

Tensor std(const Tensor& x, const Shape& axes, double correction, bool keepdim) {
  check_defined("std", x, "x");
  check_floating("std", x.dtype());
  const Tensor variance = var(widen_half(x), axes, correction, keepdim);
  // The root has no slope at 0; leaving those entries out makes it 0.
  const Tensor is_zero = eq(variance, 0);
  const Tensor y = masked_fill(sqrt(masked_fill(variance, is_zero, 1)), is_zero, 0).to(x.dtype());
  watch_versions(y, {x, y});
  return y;
}

Tensor max(const Tensor& x) {
  check_defined("max", x, "x");
  return choose<true>(x);
}
Tensor min(const Tensor& x) {
  check_defined("min", x, "x");
  return choose<false>(x);
}
ValuesAndIndices max(const Tensor& x, int64_t axis, bool keepdim) {
  check_defined("max", x, "x");
  return choose<true>(x, axis, keepdim);
}
ValuesAndIndices min(const Tensor& x, int64_t axis, bool keepdim) {
  check_defined("min", x, "x");
  return choose<false>(x, axis, keepdim);
}
Tensor amax(const Tensor& x, const Shape& axes, bool keepdim) {
  check_defined("amax", x, "x");
  return extreme<true>(x, axes, keepdim);
}
Tensor amin(const Tensor& x, const Shape& axes, bool keepdim) {
  check_defined("amin", x, "x");
  return extreme<false>(x, axes, keepdim);
}
Tensor argmax(const Tensor& x, std::optional<int64_t> axis, bool keepdim) {
  check_defined("argmax", x, "x");
  return arg_extreme<true>(x, axis, keepdim);
}
Tensor argmin(const Tensor& x, std::optional<int64_t> axis, bool keepdim) {
  check_defined("argmin", x, "x");
  return arg_extreme<false>(x, axis, keepdim);
}

Tensor any(const Tensor& x, const Shape& axes, bool keepdim) {
  check_defined("any", x, "x");
  return apply_op(Quantifier<true>{normalize_axes("any", axes, x.dim()), keepdim}, x);
}
Tensor all(const Tensor& x, const Shape& axes, bool keepdim) {
  check_defined("all", x, "x");
  return apply_op(Quantifier<false>{normalize_axes("all", axes, x.dim()), keepdim}, x);
}

Tensor cumsum(const Tensor& x, int64_t axis) {
  check_defined("cumsum", x, "x");
  const int64_t a = normalize_axis("cumsum", axis, x.dim());
  return apply_op(CumSum{a, false}, widen_integers(x));
}

Tensor sum_to(const Tensor& x, const Shape& shape) {
  check_defined("sum_to", x, "x");
  if (x.shape() == shape) {
    return x;
  }
  const int64_t missing = x.dim() - shape.size();
  Shape axes;
  for (int64_t i = 0; i < x.dim(); ++i) {
    if (i < missing || (shape[i - missing] == 1 && x.shape()[i] != 1)) {
      axes.push_back(i);
    }
  }
  if (axes.empty()) {
    return x.reshape(shape);
  }
  return sum(x, axes, true).reshape(shape);
}

}  // namespace tapestry
