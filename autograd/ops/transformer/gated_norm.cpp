#include "autograd/ops/transformer/gated_norm.h"

#include <array>
#include <utility>

#include "autograd/kernels/gated_norm.h"
#include "autograd/ops/activation.h"
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

namespace gated_norms {

constexpr OpName kNorm = "gated_rms_norm";
constexpr OpName kSquares = "gated_sum_of_squares";

// ------------------------------------------------------------------------------------ arguments

// What the ops remember.
struct Form {
  int64_t group = 0;
  bool gate_first = false;
  bool has_squares = false;
  double eps = 0;
  DType dtype = kFloat32;
};

bool is_wide(DType dtype) { return dtype == kFloat64; }

Shape of_groups(const Tensor& x, int64_t group) {
  Shape shape = x.shape();
  shape.back() = group > 0 ? shape.back() / group : 0;
  return shape;
}

// The checks that both ops share.
Form form_of(std::string_view op, const Tensor& x, const Tensor& z, const GatedNormOptions& o) {
  check_defined(op, x, "x");
  check_floating(op, x.dtype());
  check<ValueError>(x.dim() >= 1, op, ": x must have an axis to normalize, got a scalar");
  if (z.defined()) {
    check_floating(op, z.dtype());
    check<ValueError>(x.shape() == z.shape(), op, ": the shapes of x ", x.shape(), " and z ",
                      z.shape(), " differ");
    check<TypeError>(is_wide(x.dtype()) == is_wide(z.dtype()), op, ": x of ", name_of(x.dtype()),
                     " with z of ", name_of(z.dtype()), "; float64 goes with float64 only");
  }
  const int64_t n = x.shape().back();
  const int64_t group = o.group_size == 0 ? n : o.group_size;
  check<ValueError>(group >= 0 && (group == 0 || n % group == 0), op, ": group_size ", o.group_size,
                    " must divide the last axis of x ", x.shape());
  return {group, o.order == GatedNormOrder::kGateThenNorm, false, o.eps,
          o.dtype.value_or(x.dtype())};
}

Form norm_form(const Tensor& x, const Tensor& z, const Tensor& gain, const GatedNormOptions& o) {
  check_defined(kNorm, x, "x", z, "z");
  Form form = form_of(kNorm, x, z, o);
  check<ValueError>(o.eps >= 0, kNorm, ": eps must not be negative, got ", o.eps);
  check_floating(kNorm, form.dtype);
  check<TypeError>(is_wide(x.dtype()) == is_wide(form.dtype), kNorm, ": x of ", name_of(x.dtype()),
                   " cannot give ", name_of(form.dtype), "; float64 goes with float64 only");
  if (gain.defined()) {
    const Shape own = {x.shape().back()};
    const Shape shared = {form.group};
    check<ValueError>(gain.shape() == own || gain.shape() == shared, kNorm, ": gain ", gain.shape(),
                      " must be ", own, " or, for all groups, ", shared);
    check<TypeError>(gain.dtype() == form.dtype || gain.dtype() == kFloat32, kNorm,
                     ": gain must be ", name_of(form.dtype),
                     " (the result's dtype) or float32, "
                     "got ",
                     name_of(gain.dtype()));
  }
  if (o.mean_squares.defined()) {
    const Shape expected = of_groups(x, form.group);
    check<ValueError>(o.mean_squares.shape() == expected, kNorm, ": mean_squares ",
                      o.mean_squares.shape(), " must be ", expected, ", one for each group");
    check<TypeError>(o.mean_squares.dtype() == wide_dtype(x.dtype()), kNorm,
                     ": mean_squares must be ", name_of(wide_dtype(x.dtype())), ", got ",
                     name_of(o.mean_squares.dtype()));
    form.has_squares = true;
  }
  return form;
}

// ------------------------------------------------------------------------------------------ twins

// x as [..., groups, group]
Tensor grouped(const Tensor& x, int64_t group) {
  Shape shape = of_groups(x, group);
  shape.push_back(group);
  return x.reshape(shape);
}

Tensor normed_of(const Form& form, const Tensor& x, const Tensor& z) {
  const Tensor wide = widen(x);
  return grouped(form.gate_first ? mul(wide, silu(widen(z))) : wide, form.group);
}

Tensor composed_squares(const Form& form, const Tensor& x, const Tensor& z) {
  return sum(square(normed_of(form, x, z)), {-1});
}

Tensor composed_norm(const Form& form,
                     const Tensor& x,
                     const Tensor& z,
                     const Tensor& gain,
                     const Tensor& mean_squares) {
  const Tensor u = normed_of(form, x, z);
  const Tensor means =
      mean_squares.defined() ? mean_squares.unsqueeze(-1) : mean(square(u), {-1}, true);
  Tensor y = mul(u, rsqrt(add(means, form.eps)));
  if (gain.defined()) {
    const Tensor factors = gain.to(y.dtype());
    y = mul(y, gain.numel() == form.group ? factors : grouped(factors, form.group));
  }
  y = y.reshape(x.shape());
  if (!form.gate_first) {
    y = mul(y, silu(widen(z)));
  }
  return y.to(form.dtype);
}

// -------------------------------------------------------------------------------------------- ops

kernels::GatedNormShape shape_of(const Form& form,
                                 const RowView& x,
                                 const RowView& z,
                                 const Tensor& gain) {
  return {.rows = x.rows,
          .n = x.n,
          .group = form.group,
          .gate_first = form.gate_first,
          .gain_is_shared = gain.defined() && gain.numel() == form.group,
          .x_dtype = x.tensor.dtype(),
          .z_dtype = z.tensor.defined() ? z.tensor.dtype() : x.tensor.dtype(),
          .y_dtype = form.dtype,
          .gain_dtype = gain.defined() ? gain.dtype() : form.dtype,
          .x_stride = x.stride,
          .z_stride = z.stride};
}

const void* address(const Tensor& t) { return t.defined() ? t.raw() : nullptr; }
RowView rows_or_none(const Tensor& t) { return t.defined() ? rows_of(t) : RowView{}; }

struct GatedRmsNorm {
  static constexpr OpName name = kNorm;
  Form form;
  SavedTensor x, z, gain, squares, rstd;

  void for_float64() { form.dtype = kFloat64; }

  Tensor forward(const Tensor& x_, const Tensor& z_, const Tensor& gain_, const Tensor& squares_) {
    x.save(x_);
    z.save(z_);
    gain.save(gain_);
    squares.save(squares_);
    Tensor y = empty(x_.shape(), form.dtype);
    const Tensor row_rstd = empty(of_groups(x_, form.group), wide_dtype(x_.dtype()));
    rstd.save(row_rstd);
    if (y.numel() == 0) {
      return y;
    }
    const RowView values = rows_of(x_);
    const RowView gates = rows_of(z_);
    const Tensor factors = gain_.defined() ? dense(gain_) : gain_;
    const Tensor means = squares_.defined() ? dense(squares_) : squares_;
    kernels::gated_norm({.shape = shape_of(form, values, gates, factors),
                         .eps = form.eps,
                         .x = values.tensor.raw(),
                         .z = gates.tensor.raw(),
                         .gain = address(factors),
                         .mean_squares = address(means),
                         .rstd = row_rstd.raw(),
                         .y = y.raw()});
    return y;
  }

  TensorList backward(const Tensor& dy_, NeedsGrad needs) const {
    if (grad_enabled()) {
      const auto twin = [this](const TensorList& in) {
        return composed_norm(form, in[0], in[1], in[2], in[3]);
      };
      return vjp(twin, dy_, {x, z, gain, squares});
    }
    const Tensor own = x;
    const Tensor gate = z;
    const Tensor scale = gain;
    if (own.numel() == 0) {
      const auto nothing = [](const Tensor& t) { return t.defined() ? zeros_like(t) : t; };
      return {nothing(own), nothing(gate), nothing(scale), nothing(squares)};
    }
    const RowView values = rows_of(own);
    const RowView gates = rows_of(gate);
    const RowView dy = rows_of(dy_);
    const Tensor factors = scale.defined() ? dense(scale) : scale;
    const Tensor row_rstd = rstd;
    const Tensor dx = needs[0] ? empty(own.shape(), own.dtype()) : Tensor();
    const Tensor dz = needs[1] ? empty(gate.shape(), gate.dtype()) : Tensor();
    const Tensor dsquares = needs[3] ? empty(row_rstd.shape(), row_rstd.dtype()) : Tensor();
    kernels::GatedNormBackward call = {.shape = shape_of(form, values, gates, factors),
                                       .dy = dy.tensor.raw(),
                                       .dy_stride = dy.stride,
                                       .x = values.tensor.raw(),
                                       .z = gates.tensor.raw(),
                                       .gain = address(factors),
                                       .rstd = row_rstd.raw(),
                                       .squares_were_given = form.has_squares,
                                       .dx = needs[0] ? dx.raw() : nullptr,
                                       .dz = needs[1] ? dz.raw() : nullptr,
                                       .dmean_squares = needs[3] ? dsquares.raw() : nullptr};
    const Tensor dgain = column_gradient(scale, needs[2] ? scale.dtype() : form.dtype,
                                         needs[2] ? scale.numel() : 0, needs[2], call.dgain);
    kernels::gated_norm_backward(call);
    return {dx, dz, dgain, dsquares};
  }
};

struct GatedSumOfSquares {
  static constexpr OpName name = kSquares;
  Form form;
  SavedTensor x, z;

  void for_float64() { form.dtype = kFloat64; }

  // z_: undefined where it is not read
  Tensor forward(const Tensor& x_, const Tensor& z_) {
    x.save(x_);
    z.save(z_);
    Tensor out = empty(of_groups(x_, form.group), wide_dtype(x_.dtype()));
    if (x_.numel() == 0) {
      return out;
    }
    const RowView values = rows_of(x_);
    const RowView gates = rows_or_none(z_);
    kernels::gated_squares({.shape = shape_of(form, values, gates, {}),
                            .x = values.tensor.raw(),
                            .z = address(gates.tensor),
                            .squares = out.raw()});
    return out;
  }

  std::array<Tensor, 2> backward(const Tensor& dy, NeedsGrad needs) const {
    if (grad_enabled()) {
      const auto twin = [this](const TensorList& in) {
        return composed_squares(form, in[0], in[1]);
      };
      const TensorList gradients = vjp(twin, dy, {x, z});
      return {gradients[0], gradients[1]};
    }
    const Tensor own = x;
    const Tensor gate = z;
    const Tensor dx = needs[0] ? empty(own.shape(), own.dtype()) : Tensor();
    const Tensor dz = needs[1] ? empty(gate.shape(), gate.dtype()) : Tensor();
    if (own.numel() == 0) {
      return {dx, dz};
    }
    const RowView values = rows_of(own);
    const RowView gates = rows_or_none(gate);
    const Tensor dsquares = dense(dy);
    kernels::gated_squares_backward({.shape = shape_of(form, values, gates, {}),
                                     .x = values.tensor.raw(),
                                     .z = address(gates.tensor),
                                     .dsquares = dsquares.raw(),
                                     .dx = needs[0] ? dx.raw() : nullptr,
                                     .dz = needs[1] ? dz.raw() : nullptr});
    return {dx, dz};
  }
};

// The gate, where it takes part in the squares.
Tensor gate_of(const Form& form, const Tensor& z) {
  if (!form.gate_first) {
    return {};
  }
  check_defined(kSquares, z, "z");
  return z;
}

Tensor as_gain(const Tensor& gain, const Tensor& x) {
  return gain.defined() && is_wide(x.dtype()) ? gain.to(kFloat64) : gain;
}

}  // namespace gated_norms

}  // namespace

Tensor gated_rms_norm(const Tensor& x,
                      const Tensor& z,
                      const Tensor& gain,
                      const GatedNormOptions& options) {
  gated_norms::GatedRmsNorm op;
  op.form = gated_norms::norm_form(x, z, gain, options);
  return apply_op(std::move(op), x, z, gated_norms::as_gain(gain, x), options.mean_squares);
}

Tensor gated_sum_of_squares(const Tensor& x, const Tensor& z, const GatedNormOptions& options) {
  gated_norms::GatedSumOfSquares op;
  op.form = gated_norms::form_of(gated_norms::kSquares, x, z, options);
  op.form.dtype = x.dtype();
  const Tensor gate = gated_norms::gate_of(op.form, z);
  return apply_op(std::move(op), x, gate);
}

Tensor composed_gated_rms_norm(const Tensor& x,
                               const Tensor& z,
                               const Tensor& gain,
                               const GatedNormOptions& options) {
  const gated_norms::Form form = gated_norms::norm_form(x, z, gain, options);
  return gated_norms::composed_norm(form, x, z, gain, options.mean_squares);
}

Tensor composed_gated_sum_of_squares(const Tensor& x,
                                     const Tensor& z,
                                     const GatedNormOptions& options) {
  const gated_norms::Form form = gated_norms::form_of(gated_norms::kSquares, x, z, options);
  return gated_norms::composed_squares(form, x, gated_norms::gate_of(form, z));
}

}  // namespace tapestry
