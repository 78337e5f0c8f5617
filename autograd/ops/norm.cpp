#include "autograd/ops/norm.h"

#include "autograd/kernels/norm.h"
#include "autograd/ops/column_gradient.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/map.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/rows.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/check_defined.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

// ------------------------------------------------------------------------------------ arguments

void check_parameter(std::string_view op,
                     std::string_view which,
                     const Tensor& parameter,
                     const Tensor& x,
                     std::string_view whose,
                     DType dtype) {
  if (!parameter.defined()) {
    return;
  }
  check<ValueError>(parameter.shape() == Shape{x.shape().back()}, op, ": ", which, " ",
                    parameter.shape(), " must be [", x.shape().back(), "] for x ", x.shape());
  check<TypeError>(parameter.dtype() == dtype || parameter.dtype() == kFloat32, op, ": ", which,
                   " must be ", name_of(dtype), " (", whose, " dtype) or float32, got ",
                   name_of(parameter.dtype()));
}

void check_norm(std::string_view op,
                const Tensor& x,
                const Tensor& weight,
                const Tensor& bias,
                double eps,
                DType dtype) {
  check_floating(op, x.dtype());
  check_floating(op, dtype);
  check<TypeError>((x.dtype() == kFloat64) == (dtype == kFloat64), op, ": x of ",
                   name_of(x.dtype()), " cannot give ", name_of(dtype),
                   "; float64 goes with float64 only");
  check<ValueError>(x.dim() >= 1, op, ": x must have an axis to normalize, got a scalar");
  check<ValueError>(eps >= 0, op, ": eps must not be negative, got ", eps);
  check_parameter(op, "weight", weight, x, "the result's", dtype);
  check_parameter(op, "bias", bias, x, "the result's", dtype);
}

void check_add_norm(std::string_view op,
                    const Tensor& x,
                    const Tensor& residual,
                    const Tensor& weight,
                    const Tensor& bias,
                    const AddNormOptions& options,
                    DType dtype) {
  check<ValueError>(x.shape() == residual.shape(), op, ": the shapes of x ", x.shape(),
                    " and residual ", residual.shape(), " differ");
  check_floating(op, residual.dtype());
  check_norm(op, x, weight, bias, options.eps, dtype);
  check<TypeError>((x.dtype() == kFloat64) == (residual.dtype() == kFloat64), op, ": x of ",
                   name_of(x.dtype()), " with a residual of ", name_of(residual.dtype()),
                   "; float64 goes with float64 only");
  check_parameter(op, "x_bias", options.x_bias, x, "x's", x.dtype());
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

// -------------------------------------------------------------------------------------- kernels

const void* address(const Tensor& t) { return t.defined() ? t.raw() : nullptr; }
void* address(Tensor& t) { return t.defined() ? t.raw() : nullptr; }
Tensor dense_or_none(const Tensor& t) { return t.defined() ? dense(t) : t; }

int64_t count_rows(const Tensor& x) {
  Shape rows = x.shape();
  rows.pop_back();
  return rows.numel();
}

kernels::NormShape shape_of(
    const Tensor& sum, bool centered, DType normed, DType weight, DType x, DType x_bias) {
  return {count_rows(sum), sum.shape().back(), centered, sum.dtype(), normed, weight, x, x_bias};
}

// What backward needs to know of the rows.
struct Statistics {
  SavedTensor mean, rstd;

  // Runs the kernel and keeps what it finds.
  void run_forward(kernels::NormForward& call) {
    const DType dtype = wide_dtype(call.shape.sum_dtype);
    Tensor row_mean = call.shape.centered ? empty({call.shape.rows}, dtype) : Tensor();
    Tensor row_rstd = empty({call.shape.rows}, dtype);
    call.mean = address(row_mean);
    call.rstd = row_rstd.raw();
    kernels::norm_forward(call);
    mean.save(row_mean);
    rstd.save(row_rstd);
  }
  void run_backward(kernels::NormBackward& call) const {
    const Tensor row_mean = mean;
    const Tensor row_rstd = rstd;
    call.mean = address(row_mean);
    call.rstd = row_rstd.raw();
    kernels::norm_backward(call);
  }
};

// ------------------------------------------------------------------------------------------ ops

Tensor composed_norm(bool centered,
                     const Tensor& x,
                     const Tensor& weight,
                     const Tensor& bias,
                     double eps,
                     DType dtype) {
  const Tensor wide = widen(x);
  const Tensor values = centered ? sub(wide, mean(wide, {-1}, true)) : wide;
  const Tensor rstd = rsqrt(add(mean(square(values), {-1}, true), eps));
  Tensor out = mul(values, rstd);
  out = weight.defined() ? mul(out, weight.to(out.dtype())) : out;
  out = bias.defined() ? add(out, bias.to(out.dtype())) : out;
  return out.to(dtype);
}

template <bool kCentered>
struct Norm {
  static constexpr OpName name = kCentered ? "layer_norm" : "rms_norm";
  double eps;
  DType dtype;
  DType parameters;
  SavedTensor x, weight, bias;
  Statistics statistics;

  void for_float64() { dtype = parameters = kFloat64; }
  Tensor forward(const Tensor& x_, const Tensor& weight_, const Tensor& bias_) {
    x.save(x_);
    weight.save(weight_);
    bias.save(bias_);
    const Tensor values = dense(x_);
    const Tensor scale = dense_or_none(weight_);
    const Tensor shift = dense_or_none(bias_);
    Tensor y = empty(values.shape(), dtype);
    kernels::NormForward call{
        .shape = shape_of(values, kCentered, dtype, parameters, values.dtype(), parameters),
        .eps = eps,
        .residual = values.raw(),
        .weight = address(scale),
        .bias = address(shift),
        .normed = y.raw()};
    statistics.run_forward(call);
    return y;
  }

  TensorList backward(const Tensor& dy, NeedsGrad needs) const {
    if (grad_enabled()) {
      const auto twin = [e = eps, to = dtype](const TensorList& in) {
        return composed_norm(kCentered, in[0], in[1], in[2], e, to);
      };
      return vjp(twin, dy, {x, weight, bias});
    }
    const Tensor scale = weight;
    const Tensor values = dense(x.get());
    const Tensor dense_scale = dense_or_none(scale);
    const Tensor dense_dy = dense(dy);
    const int64_t n = values.shape().back();
    Tensor dx = needs[0] ? empty_like(values) : Tensor();
    kernels::NormBackward call{
        .shape = shape_of(values, kCentered, dtype, parameters, values.dtype(), parameters),
        .dnormed = dense_dy.raw(),
        .sum = values.raw(),
        .weight = address(dense_scale),
        .d = address(dx)};
    const Tensor dweight = column_gradient(scale, parameters, n, needs[1], call.dweight);
    const Tensor dbias = column_gradient(bias, parameters, n, needs[2], call.dbias);
    statistics.run_backward(call);
    return {dx, dweight, dbias};
  }
};

template <bool kCentered>
struct AddAndNorm {
  static constexpr OpName name = kCentered ? "add_layer_norm" : "add_rms_norm";
  double eps;
  DType dtype;
  DType parameters;
  DType x_dtype = kFloat32;
  SavedTensor sum, weight, bias, x_bias;
  Statistics statistics;

  void for_float64() { dtype = parameters = kFloat64; }
  std::array<Tensor, 2> forward(const Tensor& x,
                                const Tensor& residual,
                                const Tensor& weight_,
                                const Tensor& bias_,
                                const Tensor& x_bias_) {
    x_dtype = x.dtype();
    weight.save(weight_);
    bias.save(bias_);
    x_bias.save(x_bias_);
    const Tensor values = dense(x);
    const Tensor stream = dense(residual);
    const Tensor scale = dense_or_none(weight_);
    const Tensor shift = dense_or_none(bias_);
    const Tensor offset = dense_or_none(x_bias_);
    Tensor total = empty_like(stream);
    Tensor y = empty(values.shape(), dtype);
    kernels::NormForward call{.shape = shape_of(stream, kCentered, dtype, parameters, x_dtype,
                                                offset.defined() ? offset.dtype() : x_dtype),
                              .eps = eps,
                              .residual = stream.raw(),
                              .x = values.raw(),
                              .x_bias = address(offset),
                              .weight = address(scale),
                              .bias = address(shift),
                              .sum = total.raw(),
                              .normed = y.raw()};
    statistics.run_forward(call);
    return {sum.save_output(total, 0), y};
  }

  TensorList backward(const TensorList& dys, NeedsGrad needs) const {
    const Tensor& dsum = dys[0];
    const Tensor& dnormed = dys[1];
    if (grad_enabled() || !dnormed.defined()) {
      return composed_backward(dsum, dnormed, needs);
    }
    const Tensor total = sum;
    const Tensor scale = weight;
    const Tensor offset = x_bias;
    const Tensor dense_scale = dense_or_none(scale);
    const Tensor dense_dy = dense(dnormed);
    const Tensor dense_dsum = dense_or_none(dsum);
    const int64_t n = total.shape().back();
    const bool one_dtype = x_dtype == total.dtype();
    Tensor d = needs[1] || (needs[0] && one_dtype) ? empty_like(total) : Tensor();
    Tensor dx = needs[0] && !one_dtype ? empty(total.shape(), x_dtype) : Tensor();
    kernels::NormBackward call{.shape = shape_of(total, kCentered, dtype, parameters, x_dtype,
                                                 offset.defined() ? offset.dtype() : x_dtype),
                               .dsum = address(dense_dsum),
                               .dnormed = dense_dy.raw(),
                               .sum = total.raw(),
                               .weight = address(dense_scale),
                               .d = address(d),
                               .dx = address(dx)};
    const Tensor dweight = column_gradient(scale, parameters, n, needs[2], call.dweight);
    const Tensor dbias = column_gradient(bias, parameters, n, needs[3], call.dbias);
    const Tensor doffset =
        column_gradient(offset, call.shape.x_bias_dtype, n, needs[4], call.dx_bias);
    statistics.run_backward(call);
    return {one_dtype && needs[0] ? d : dx, needs[1] ? d : Tensor(), dweight, dbias, doffset};
  }

 private:
  // The same in ops: for gradients of gradients, and where only the sum was used.
  TensorList composed_backward(const Tensor& dsum, const Tensor& dnormed, NeedsGrad needs) const {
    Tensor d = dsum;
    TensorList parts(3);
    if (dnormed.defined()) {
      const auto twin = [e = eps, to = dtype](const TensorList& in) {
        return composed_norm(kCentered, in[0], in[1], in[2], e, to);
      };
      parts = vjp(twin, dnormed, {sum, weight, bias});
      d = d.defined() ? add(d, parts[0]) : parts[0];
    }
    const Tensor dx = needs[0] ? d.to(x_dtype) : Tensor();
    const Tensor offset = x_bias;
    Tensor doffset = needs[4] ? exact_row_sums(offset, d) : Tensor();
    if (needs[4] && !doffset.defined()) {
      doffset = sum_to(tapestry::widen(d), offset.shape()).to(offset.dtype());
    }
    return {dx, needs[1] ? d : Tensor(), parts[1], parts[2], doffset};
  }
};

template <bool kCentered>
Tensor norm(const Tensor& x,
            const Tensor& weight,
            const Tensor& bias,
            double eps,
            std::optional<DType> dtype) {
  const DType to = dtype.value_or(x.dtype());
  check_norm(Norm<kCentered>::name, x, weight, bias, eps, to);
  const DType parameters = parameter_dtype(x, weight, bias);
  return apply_op(Norm<kCentered>{eps, to, parameters, {}, {}, {}, {}}, x,
                  as_parameter(weight, parameters), as_parameter(bias, parameters));
}

template <bool kCentered>
AddNorm add_norm(const Tensor& x,
                 const Tensor& residual,
                 const Tensor& weight,
                 const Tensor& bias,
                 const AddNormOptions& options) {
  const DType to = options.dtype.value_or(x.dtype());
  check_add_norm(AddAndNorm<kCentered>::name, x, residual, weight, bias, options, to);
  const DType parameters = parameter_dtype(x, weight, bias);
  AddAndNorm<kCentered> op;
  op.eps = options.eps;
  op.dtype = to;
  op.parameters = parameters;
  const Tensor x_bias = options.x_bias.defined() && x.dtype() == kFloat64
                            ? options.x_bias.to(kFloat64)
                            : options.x_bias;
  const auto [sum, normed] = apply_op(std::move(op), x, residual, as_parameter(weight, parameters),
                                      as_parameter(bias, parameters), x_bias);
  // The parameters of the norm have no part in the sum.
  const bool has_gradient =
      detail::wants_grad(x) || detail::wants_grad(residual) || detail::wants_grad(x_bias);
  return {has_gradient ? sum : sum.detach(), normed};
}

template <bool kCentered>
AddNorm composed_add_norm(const Tensor& x,
                          const Tensor& residual,
                          const Tensor& weight,
                          const Tensor& bias,
                          const AddNormOptions& options) {
  const DType to = options.dtype.value_or(x.dtype());
  check_add_norm(AddAndNorm<kCentered>::name, x, residual, weight, bias, options, to);
  Tensor values = widen(x);
  if (options.x_bias.defined()) {
    values = add(values, options.x_bias.to(values.dtype()));
  }
  const Tensor sum = add(widen(residual), values).to(residual.dtype());
  return {sum, composed_norm(kCentered, sum, weight, bias, options.eps, to)};
}

}  // namespace

Tensor layer_norm(const Tensor& x,
                  const Tensor& weight,
                  const Tensor& bias,
                  double eps,
                  std::optional<DType> dtype) {
  check_defined("layer_norm", x, "x");
  return norm<true>(x, weight, bias, eps, dtype);
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps, std::optional<DType> dtype) {
  check_defined("rms_norm", x, "x");
  return norm<false>(x, weight, {}, eps, dtype);
}

AddNorm add_layer_norm(const Tensor& x,
                       const Tensor& residual,
                       const Tensor& weight,
                       const Tensor& bias,
                       const AddNormOptions& options) {
  check_defined("add_layer_norm", x, "x", residual, "residual");
  return add_norm<true>(x, residual, weight, bias, options);
}

AddNorm add_rms_norm(const Tensor& x,
                     const Tensor& residual,
                     const Tensor& weight,
                     const AddNormOptions& options) {
  check_defined("add_rms_norm", x, "x", residual, "residual");
  return add_norm<false>(x, residual, weight, {}, options);
}

Tensor composed_layer_norm(const Tensor& x,
                           const Tensor& weight,
                           const Tensor& bias,
                           double eps,
                           std::optional<DType> dtype) {
  const DType to = dtype.value_or(x.dtype());
  check_norm("layer_norm", x, weight, bias, eps, to);
  return composed_norm(true, x, weight, bias, eps, to);
}

Tensor composed_rms_norm(const Tensor& x,
                         const Tensor& weight,
                         double eps,
                         std::optional<DType> dtype) {
  const DType to = dtype.value_or(x.dtype());
  check_norm("rms_norm", x, weight, {}, eps, to);
  return composed_norm(false, x, weight, {}, eps, to);
}

AddNorm composed_add_layer_norm(const Tensor& x,
                                const Tensor& residual,
                                const Tensor& weight,
                                const Tensor& bias,
                                const AddNormOptions& options) {
  return composed_add_norm<true>(x, residual, weight, bias, options);
}

AddNorm composed_add_rms_norm(const Tensor& x,
                              const Tensor& residual,
                              const Tensor& weight,
                              const AddNormOptions& options) {
  return composed_add_norm<false>(x, residual, weight, {}, options);
}

}  // namespace tapestry
