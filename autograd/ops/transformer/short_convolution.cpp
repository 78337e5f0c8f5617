#include "autograd/ops/transformer/short_convolution.h"

#include <vector>

#include "autograd/kernels/recurrence/short_convolution.h"
#include "autograd/ops/activation.h"
#include "autograd/ops/column_gradient.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/map.h"
#include "autograd/ops/rows.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/ops/transformer/documents.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/check_defined.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace short_convolution_op {

constexpr OpName kConvolution = "short_convolution";
constexpr OpName kStep = "short_convolution_step";

namespace {

/// x [.., C].
void check_weight(std::string_view name,
                  const Tensor& x,
                  const Tensor& weight,
                  const Tensor& bias) {
  check_floating(name, x.dtype());
  check_floating(name, weight.dtype());
  const auto is_in_kind = [&](const Tensor& parameter) {
    return (parameter.dtype() == kFloat64) == (x.dtype() == kFloat64);
  };
  check<TypeError>(is_in_kind(weight) && (!bias.defined() || is_in_kind(bias)), name,
                   ": float64 x takes float64 weight and bias, and no other x does; x is ",
                   name_of(x.dtype()), ", the weight ", name_of(weight.dtype()));
  const int64_t channels = x.shape().back();
  check<ValueError>(weight.dim() == 2 && weight.size(0) == channels && weight.size(1) >= 1 &&
                        weight.size(1) <= kernels::kMostTaps,
                    name, ": the weight of x ", x.shape(), " must be [", channels, ", 1 to ",
                    kernels::kMostTaps, " taps], got ", weight.shape());
  if (bias.defined()) {
    check_floating(name, bias.dtype());
    check<ValueError>(bias.shape() == Shape{channels}, name, ": the bias must be [", channels,
                      "], got ", bias.shape());
  }
}

void check_convolution(const Tensor& x, const Tensor& weight, const ShortConvolutionOptions& o) {
  check<ValueError>(x.dim() == 3, kConvolution, ": x must be [B, S, C], got ", describe(x));
  check_weight(kConvolution, x, weight, o.bias);
  check_document_starts(kConvolution, o.document_starts, x.size(0), x.size(1), o.first_position);
  if (o.previous.defined()) {
    const Shape expected = {x.size(0), weight.size(1) - 1, x.size(2)};
    check<TypeError>(o.previous.dtype() == x.dtype(), kConvolution, ": previous must be ",
                     name_of(x.dtype()), " as x, got ", name_of(o.previous.dtype()));
    check<ValueError>(o.previous.shape() == expected, kConvolution, ": previous must be ", expected,
                      ", got ", o.previous.shape());
  }
}

Tensor with_dense_channels(const Tensor& x) {
  return x.shape().back() > 1 && x.strides().back() != 1 ? dense_copy(x) : x;
}

/// The tensors of a call in the layouts that the kernel takes, which keeps them alive.
struct Arguments {
  Tensor x, weight, bias, previous, starts;
  kernels::ConvolutionProblem problem;

  /// x [B, S, C], or [B, C]: one token.
  Arguments(const Tensor& x_,
            const Tensor& weight_,
            const Tensor& bias_,
            const Tensor& previous_,
            const Tensor& starts_,
            bool silu,
            int64_t first_position)
      : x(with_dense_channels(x_)),
        weight(dense(weight_.to(wide_dtype(x_.dtype())).transpose(0, 1))),
        bias(bias_.defined() ? dense(bias_.to(wide_dtype(x_.dtype()))) : bias_),
        previous(previous_.defined() ? dense(previous_) : previous_),
        starts(starts_) {
    const DocumentRows documents = document_rows(starts);
    const bool has_sequence = x.dim() == 3;
    problem = {.dtype = x.dtype(),
               .batch = x.size(0),
               .tokens = has_sequence ? x.size(1) : 1,
               .channels = x.shape().back(),
               .taps = weight.size(0),
               .silu = silu,
               .x = {x.raw(), x.strides()[0], has_sequence ? x.strides()[1] : 0},
               .previous = previous.defined() ? previous.raw() : nullptr,
               .weight = weight.raw(),
               .bias = bias.defined() ? bias.raw() : nullptr,
               .starts = documents.starts,
               .starts_batch = documents.batch_stride,
               .first_position = first_position};
  }
};

struct ShortConvolution {
  static constexpr OpName name = kConvolution;
  bool silu;
  int64_t first_position;
  SavedTensor x = {}, weight = {}, bias = {}, previous = {}, starts = {};

  Tensor forward(const Tensor& x_,
                 const Tensor& weight_,
                 const Tensor& bias_,
                 const Tensor& previous_,
                 const Tensor& starts_) {
    x.save(x_);
    weight.save(weight_);
    bias.save(bias_);
    previous.save(previous_);
    starts.save(starts_);
    Tensor y = empty(x_.shape(), x_.dtype());
    const Arguments in(x_, weight_, bias_, previous_, starts_, silu, first_position);
    kernels::short_convolution(in.problem, y.raw());
    return y;
  }

  TensorList backward(const Tensor& dy_, NeedsGrad needs) const {
    if (grad_enabled()) {
      return composed_backward(dy_);
    }
    const Tensor parameter = weight;
    const Tensor offset = bias;
    const Arguments in(x, parameter, offset, previous, starts, silu, first_position);
    const Tensor dy = with_dense_channels(dy_);
    const Tensor dx = needs[0] ? empty(in.x.shape(), in.x.dtype()) : Tensor();
    const Tensor dprevious = needs[3] ? zeros(in.previous.shape(), in.x.dtype()) : Tensor();
    kernels::ConvolutionBackward to = {
        .dy = {dy.raw(), dy.strides()[0], dy.strides()[1]},
        .dx = dx.defined() ? dx.raw() : nullptr,
        .dprevious = dprevious.defined() && dprevious.numel() > 0 ? dprevious.raw() : nullptr};
    const Tensor dweight =
        column_gradient(parameter, parameter.dtype(), parameter.numel(), needs[1], to.dweight);
    const Tensor dbias =
        needs[2] ? column_gradient(offset, offset.dtype(), offset.numel(), true, to.dbias)
                 : Tensor();
    check<RuntimeError>(!to.dweight.exact && !to.dbias.exact,
                        "short_convolution has no exact gradients of its weight and bias");
    kernels::short_convolution_backward(in.problem, to);
    return {dx, dweight.defined() && dweight.dim() == 1 ? dweight.view(parameter.shape()) : dweight,
            dbias, dprevious, Tensor()};
  }

 private:
  TensorList composed_backward(const Tensor& dy) const {
    TensorList inputs = {x, weight};
    const Tensor offset = bias;
    const Tensor before = previous;
    ShortConvolutionOptions options = {.silu = silu, .first_position = first_position};
    options.document_starts = starts;
    for (const Tensor& optional : {offset, before}) {
      if (optional.defined()) {
        inputs.push_back(optional);
      }
    }
    const size_t of_previous = offset.defined() ? 3 : 2;
    const auto twin = [&](const TensorList& in) {
      options.bias = offset.defined() ? in[2] : offset;
      options.previous = before.defined() ? in[of_previous] : before;
      return composed_short_convolution(in[0], in[1], options);
    };
    const TensorList d = vjp(twin, dy, inputs);
    return {d[0], d[1], offset.defined() ? d[2] : Tensor(),
            before.defined() ? d[of_previous] : Tensor(), Tensor()};
  }
};

struct ShortConvolutionStep {
  static constexpr OpName name = kStep;
  static constexpr bool differentiable = false;
  bool silu;
  std::vector<int64_t> slots;

  Tensor forward(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& state) {
    Tensor y = empty(x.shape(), x.dtype());
    const Arguments in(x, weight, bias, {}, {}, silu, 0);
    kernels::short_convolution_step(
        in.problem,
        {.state = state.raw(), .state_dtype = state.dtype(), .slots = slots.data(), .y = y.raw()});
    state.bump_version();
    return y;
  }
};

}  // namespace
}  // namespace short_convolution_op

Tensor short_convolution(const Tensor& x,
                         const Tensor& weight,
                         const ShortConvolutionOptions& options) {
  using namespace short_convolution_op;
  check_defined(kConvolution, x, "x", weight, "weight");
  check_convolution(x, weight, options);
  return apply_op(ShortConvolution{options.silu, options.first_position}, x, weight, options.bias,
                  options.previous, options.document_starts);
}

Tensor composed_short_convolution(const Tensor& x,
                                  const Tensor& weight,
                                  const ShortConvolutionOptions& options) {
  using namespace short_convolution_op;
  check_convolution(x, weight, options);
  const DType wide = wide_dtype(x.dtype());
  const int64_t batch = x.size(0);
  const int64_t tokens = x.size(1);
  const int64_t taps = weight.size(1);
  const Tensor before = options.previous.defined() ? widen(options.previous)
                                                   : zeros({batch, taps - 1, x.size(2)}, wide);
  const Tensor rows = cat({before, widen(x)}, 1);
  const Tensor w = weight.to(wide);
  Tensor z =
      options.bias.defined() ? options.bias.to(wide).expand(x.shape()) : zeros(x.shape(), wide);
  for (int64_t i = 0; i < taps; ++i) {
    Tensor part = mul(rows.slice(1, i, i + tokens), w.select(1, i));
    if (options.document_starts.defined()) {
      part = masked_fill(part,
                         is_of_other_document(options.document_starts, tokens,
                                              options.first_position, taps - 1 - i)
                             .unsqueeze(-1),
                         0);
    }
    z = add(z, part);
  }
  return (options.silu ? composed_silu(z) : z).to(x.dtype());
}

Tensor short_convolution_step(const Tensor& x,
                              const Tensor& weight,
                              const Tensor& bias,
                              bool silu,
                              const Tensor& state,
                              std::span<const int64_t> slots) {
  using namespace short_convolution_op;
  check_defined(kStep, x, "x", weight, "weight", state, "state");
  check<ValueError>(x.dim() == 2, kStep, ": x must be [M, C], got ", describe(x));
  check_weight(kStep, x, weight, bias);
  check<TypeError>(state.dtype() == x.dtype() || state.dtype() == wide_dtype(x.dtype()), kStep,
                   ": the state of ", name_of(x.dtype()), " x must be ", name_of(x.dtype()), " or ",
                   name_of(wide_dtype(x.dtype())), ", got ", name_of(state.dtype()));
  check<ValueError>(state.dim() == 3 && state.is_contiguous() &&
                        state.size(1) == weight.size(1) - 1 && state.size(2) == x.size(1),
                    kStep, ": the state must be contiguous [slots, ", weight.size(1) - 1, ", ",
                    x.size(1), "], got ", describe(state));
  check_slots(kStep, slots, x.size(0), state.size(0));
  check<RuntimeError>(
      !grad_enabled() || !(x.requires_grad() || weight.requires_grad() ||
                           (bias.defined() && bias.requires_grad()) || state.requires_grad()),
      kStep,
      ": has no gradient; run inference under a NoGradGuard, or take "
      "short_convolution()");
  return apply_op(ShortConvolutionStep{silu, {slots.begin(), slots.end()}}, x, weight, bias, state);
}

}  // namespace tapestry
