#include "autograd/ops/norm.h"

#include "autograd/kernels/norm.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/map.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/rows.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

void check_parameter(std::string_view op,
                     std::string_view which,
                     const Tensor& parameter,
                     const Tensor& x) {
  if (!parameter.defined()) {
    return;
  }
  check<ValueError>(parameter.shape() == Shape{x.shape().back()}, op, ": ", which, " ",
                    parameter.shape(), " must be [", x.shape().back(), "] for x ", x.shape());
  check<TypeError>(parameter.dtype() == x.dtype() || parameter.dtype() == kFloat32, op, ": ", which,
                   " must be ", name_of(x.dtype()), " (x's dtype) or float32, got ",
                   name_of(parameter.dtype()));
}

void check_norm(std::string_view op,
                const Tensor& x,
                const Tensor& weight,
                const Tensor& bias,
                double eps) {
  check_floating(op, x.dtype());
  check<ValueError>(x.dim() >= 1, op, ": x must have an axis to normalize, got a scalar");
  check<ValueError>(eps >= 0, op, ": eps must not be negative, got ", eps);
  check_parameter(op, "weight", weight, x);
  check_parameter(op, "bias", bias, x);
}

Tensor scaled_and_shifted(const Tensor& y, const Tensor& weight, const Tensor& bias, DType dtype) {
  Tensor out = weight.defined() ? mul(y, weight.to(y.dtype())) : y;
  out = bias.defined() ? add(out, bias.to(y.dtype())) : out;
  return out.to(dtype);
}

}  // namespace

Tensor composed_layer_norm(const Tensor& x,
                           const Tensor& weight,
                           const Tensor& bias,
                           double eps) {
  check_norm("layer_norm", x, weight, bias, eps);
  const Tensor values = widen(x);
  const Tensor centred = sub(values, mean(values, {-1}, true));
  const Tensor rstd = rsqrt(add(mean(square(centred), {-1}, true), eps));
  return scaled_and_shifted(mul(centred, rstd), weight, bias, x.dtype());
}

Tensor composed_rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  check_norm("rms_norm", x, weight, {}, eps);
  const Tensor values = widen(x);
  const Tensor rstd = rsqrt(add(mean(square(values), {-1}, true), eps));
  return scaled_and_shifted(mul(values, rstd), weight, {}, x.dtype());
}

}  // namespace tapestry
