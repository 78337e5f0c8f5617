#include "autograd/ops/math.h"

#include <cmath>

#include "autograd/kernels/elementwise/math.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/map.h"
#include "autograd/ops/reduction.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/check_defined.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/strided_view.h"

namespace tapestry {

namespace {

Tensor map_row(kernels::UnaryRow row, const Tensor& x) {
  Tensor y = empty(x.shape(), x.dtype());
  kernels::apply_unary(row, extent_of(x), view_of(x), view_of(y));
  return y;
}

// Of operands of one dtype.
Tensor map_row(std::string_view op, kernels::BinaryRow row, const Tensor& a, const Tensor& b) {
  check<TypeError>(row != nullptr, op, ": not defined for ", name_of(a.dtype()));
  check<RuntimeError>(is_floating(b.dtype()) || all(b).item() != 0, op,
                      ": an integer is divided by 0");
  Tensor y = empty(broadcast_shapes(op, a.shape(), b.shape()), a.dtype());
  const Tensor left = broadcast_view(a, y.shape());
  const Tensor right = broadcast_view(b, y.shape());
  kernels::apply_binary(row, extent_of(y), view_of(left), view_of(right), view_of(y));
  return y;
}

struct Log1p {
  static constexpr OpName name = "log1p";
  SavedTensor x;
  Tensor forward(const Tensor& x_) {
    x.save(x_);
    return map_row(kernels::log1p_row(x_.dtype()), x_);
  }
  Tensor backward(const Tensor& dy) const { return div(dy, add(x, 1)); }
};

struct Expm1 {
  static constexpr OpName name = "expm1";
  SavedTensor y;
  Tensor forward(const Tensor& x) {
    return y.save_output(map_row(kernels::expm1_row(x.dtype()), x));
  }
  Tensor backward(const Tensor& dy) const { return mul(dy, add(y, 1)); }
};

struct FloorDivide {
  static constexpr OpName name = "floor_divide";
  static constexpr bool differentiable = false;
  Tensor forward(const Tensor& a, const Tensor& b) {
    return map_row(name, kernels::floor_divide_row(a.dtype()), a, b);
  }
};

struct Remainder {
  static constexpr OpName name = "remainder";
  SavedTensor a = {}, b = {};
  Shape a_shape = {}, b_shape = {};
  Tensor forward(const Tensor& a_, const Tensor& b_) {
    a.save(a_);
    b.save(b_);
    a_shape = a_.shape();
    b_shape = b_.shape();
    return map_row(name, kernels::remainder_row(a_.dtype()), a_, b_);
  }
  std::array<Tensor, 2> backward(const Tensor& dy, NeedsGrad needs) const {
    return {needs[0] ? sum_to(dy, a_shape) : Tensor(),
            needs[1] ? sum_to(neg(mul(dy, floor_divide(a, b))), b_shape) : Tensor()};
  }
};

Tensor with_fractions(const Tensor& x) { return is_floating(x.dtype()) ? x : x.to(kFloat32); }

// A number as an operand beside a.
Tensor operand(const Tensor& a, Scalar b) {
  return scalar(b, promote_scalar(a.dtype(), b.is_floating()));
}

}  // namespace

Tensor log1p(const Tensor& x) {
  check_defined("log1p", x, "x");
  return apply_op(Log1p{}, with_fractions(x));
}
Tensor expm1(const Tensor& x) {
  check_defined("expm1", x, "x");
  return apply_op(Expm1{}, with_fractions(x));
}

Tensor floor_divide(const Tensor& a, const Tensor& b) {
  check_defined("floor_divide", a, "a", b, "b");
  const DType dtype = result_dtype(a, b);
  return apply_op(FloorDivide{}, a.to(dtype), b.to(dtype));
}
Tensor floor_divide(const Tensor& a, Scalar b) {
  check_defined("floor_divide", a, "a");
  return floor_divide(a, operand(a, b));
}

Tensor remainder(const Tensor& a, const Tensor& b) {
  check_defined("remainder", a, "a", b, "b");
  const DType dtype = result_dtype(a, b);
  return apply_op(Remainder{}, a.to(dtype), b.to(dtype));
}
Tensor remainder(const Tensor& a, Scalar b) {
  check_defined("remainder", a, "a");
  return remainder(a, operand(a, b));
}

bool allclose(const Tensor& a, const Tensor& b, double relative, double absolute, bool equal_nan) {
  check_defined("allclose", a, "a", b, "b");
  const NoGradGuard guard;
  DType dtype = result_dtype(a, b);
  dtype = is_floating(dtype) ? dtype : kFloat64;
  const Tensor x = a.to(dtype);
  const Tensor y = b.to(dtype);
  // An infinite b would make every tolerance infinite.
  Tensor close = logical_or(
      eq(x, y), logical_and(le(abs(sub(x, y)), add(mul(abs(y), relative), absolute)), isfinite(y)));
  if (equal_nan) {
    close = logical_or(close, logical_and(isnan(x), isnan(y)));
  }
  return all(close).item() != 0;
}

}  // namespace tapestry
