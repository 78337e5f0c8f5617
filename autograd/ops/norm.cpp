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

void check_norm(
    std::string_view op, const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  check_floating(op, x.dtype());
  check<ValueError>(x.dim() >= 1, op, ": x must have an axis to normalize, got a scalar");
  check<ValueError>(eps >= 0, op, ": eps must not be negative, got ", eps);
  check_parameter(op, "weight", weight, x);
  check_parameter(op, "bias", bias, x);
}

// Weight and bias in the one dtype that the kernel takes: the parameters', or float32 if they
// differ, or x's if that is float64.
DType parameter_dtype(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (x.dtype() == kFloat64) {
    return kFloat64;
  }
  if (weight.defined() && bias.defined() && weight.dtype() != bias.dtype()) {
    return kFloat32;
  }
  return weight.defined() ? weight.dtype() : bias.defined() ? bias.dtype() : kFloat32;
}
Tensor as_parameter(const Tensor& parameter, DType dtype) {
  return parameter.defined() ? parameter.to(dtype) : parameter;
}

const void* address(const Tensor& t) { return t.defined() ? t.raw() : nullptr; }
void* address(Tensor& t) { return t.defined() ? t.raw() : nullptr; }
Tensor dense_or_none(const Tensor& t) { return t.defined() ? dense(t) : t; }

int64_t count_rows(const Tensor& x) {
  Shape rows = x.shape();
  rows.pop_back();
  return rows.numel();
}

struct LayerNorm {
  static constexpr std::string_view name = "layer_norm";
  double eps;
  DType parameters;
  SavedTensor x, weight, bias, mean, rstd;

  Tensor forward(const Tensor& x_, const Tensor& weight_, const Tensor& bias_) {
    x.save(x_);
    weight.save(weight_);
    bias.save(bias_);
    const int64_t rows = count_rows(x_);
    const Tensor values = dense(x_);
    const Tensor scale = dense_or_none(weight_);
    const Tensor shift = dense_or_none(bias_);
    Tensor y = empty_like(values);
    Tensor row_mean = empty({rows}, wide_dtype(x_.dtype()));
    Tensor row_rstd = empty({rows}, wide_dtype(x_.dtype()));
    kernels::layer_norm(x_.dtype(), parameters, rows, x_.shape().back(), eps, values.raw(),
                        address(scale), address(shift), y.raw(), row_mean.raw(), row_rstd.raw());
    mean.save(row_mean);
    rstd.save(row_rstd);
    return y;
  }

  TensorList backward(const Tensor& dy, NeedsGrad needs) const {
    if (grad_enabled()) {
      const double e = eps;
      return vjp([e](const TensorList& in) { return composed_layer_norm(in[0], in[1], in[2], e); },
                 dy, {x, weight, bias});
    }
    const Tensor values = dense(x.get());
    const Tensor scale = dense_or_none(weight);
    const Tensor dense_dy = dense(dy);
    const Shape columns{values.shape().back()};
    Tensor dx = needs[0] ? empty_like(values) : Tensor();
    Tensor dweight = needs[1] ? empty(columns, parameters) : Tensor();
    Tensor dbias = needs[2] ? empty(columns, parameters) : Tensor();
    kernels::layer_norm_backward(dy.dtype(), parameters, count_rows(values), columns[0],
                                 dense_dy.raw(), values.raw(), address(scale), mean.get().raw(),
                                 rstd.get().raw(), address(dx), address(dweight), address(dbias));
    return {dx, dweight, dbias};
  }
};

struct RmsNorm {
  static constexpr std::string_view name = "rms_norm";
  double eps;
  DType parameters;
  SavedTensor x, weight, rstd;

  Tensor forward(const Tensor& x_, const Tensor& weight_) {
    x.save(x_);
    weight.save(weight_);
    const int64_t rows = count_rows(x_);
    const Tensor values = dense(x_);
    const Tensor scale = dense_or_none(weight_);
    Tensor y = empty_like(values);
    Tensor row_rstd = empty({rows}, wide_dtype(x_.dtype()));
    kernels::rms_norm(x_.dtype(), parameters, rows, x_.shape().back(), eps, values.raw(),
                      address(scale), y.raw(), row_rstd.raw());
    rstd.save(row_rstd);
    return y;
  }

  TensorList backward(const Tensor& dy, NeedsGrad needs) const {
    if (grad_enabled()) {
      const double e = eps;
      return vjp([e](const TensorList& in) { return composed_rms_norm(in[0], in[1], e); }, dy,
                 {x, weight});
    }
    const Tensor values = dense(x.get());
    const Tensor scale = dense_or_none(weight);
    const Tensor dense_dy = dense(dy);
    const Shape columns{values.shape().back()};
    Tensor dx = needs[0] ? empty_like(values) : Tensor();
    Tensor dweight = needs[1] ? empty(columns, parameters) : Tensor();
    kernels::rms_norm_backward(dy.dtype(), parameters, count_rows(values), columns[0],
                               dense_dy.raw(), values.raw(), address(scale), rstd.get().raw(),
                               address(dx), address(dweight));
    return {dx, dweight};
  }
};

Tensor scaled_and_shifted(const Tensor& y, const Tensor& weight, const Tensor& bias, DType dtype) {
  Tensor out = weight.defined() ? mul(y, weight.to(y.dtype())) : y;
  out = bias.defined() ? add(out, bias.to(y.dtype())) : out;
  return out.to(dtype);
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  check_norm(LayerNorm::name, x, weight, bias, eps);
  const DType dtype = parameter_dtype(x, weight, bias);
  return apply_op(LayerNorm{eps, dtype, {}, {}, {}, {}, {}}, x, as_parameter(weight, dtype),
                  as_parameter(bias, dtype));
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  check_norm(RmsNorm::name, x, weight, {}, eps);
  const DType dtype = parameter_dtype(x, weight, {});
  return apply_op(RmsNorm{eps, dtype, {}, {}, {}}, x, as_parameter(weight, dtype));
}

Tensor composed_layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
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
