#include "parallel_core/precision.h"

#include <array>

#include "autograd/kernels/machine/exact.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/linear_gradients.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/transformer/quantized_matrix.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

// As the sum of two tensors, with the gradient of exact mode for the bias.
struct ExactAddBias {
  static constexpr OpName name = "add_bias";
  Tensor leaf = {};
  DType bias_dtype = kFloat32;

  Tensor forward(const Tensor& x, const Tensor& bias) {
    leaf = bias.requires_grad() ? bias : Tensor();
    bias_dtype = bias.dtype();
    return (x + bias).to(x.dtype());
  }
  std::array<Tensor, 2> backward(const Tensor& dy, NeedsGrad needs) const {
    std::array<Tensor, 2> out;
    if (needs[0]) {
      out[0] = dy;
    }
    if (needs[1]) {
      out[1] = linear_bias_gradient(dy, leaf, bias_dtype);
    }
    return out;
  }
};

}  // namespace

Precision precision_of(const TransformerConfig& config) {
  Precision out;
  out.fused = config.use_fused_kernels;
  out.compute = config.compute_dtype;
  out.activation = out.fused ? out.compute : kFloat32;
  out.residual = config.fp32_residual_connection
                     ? kFloat32
                     : config.residual_connection_dtype.value_or(out.activation);
  out.norm = config.layernorm_compute_dtype;
  out.softmax = config.attention_softmax_in_fp32 || config.apply_query_key_layer_scaling
                    ? kFloat32
                    : config.softmax_compute_dtype;
  out.rotary = config.rotary_dtype;
  return out;
}

Tensor project(const Tensor& x,
               const nn::Parameter& weight,
               const nn::Parameter* bias,
               const Precision& precision,
               std::function<Tensor()> recompute_x,
               const LinearSums& sums) {
  const DType compute = precision.compute;
  const Tensor operand = x.to(compute);
  const bool quantized = weight.is_quantized();
  check<ValueError>(!in_exact() || !quantized, "exact mode: quantized weights are not supported");
  if (!precision.fused) {
    check<ValueError>(!in_exact() || size_of(compute) >= size_of(weight.dtype()),
                      "exact mode: products in ", name_of(compute), " need use_fused_kernels");
    const Tensor y = (quantized ? linear_quantized(operand, weight.quantized())
                                : linear(operand, weight.to(compute), {}, {}, nullptr, sums))
                         .to(precision.activation);
    if (in_exact() && bias != nullptr) {
      return add_bias(y, *bias);
    }
    return bias != nullptr ? y + bias->to(precision.activation) : y;
  }
  if (quantized) {  // which has no gradient, so that x is not needed again
    return linear_quantized(operand, weight.quantized(),
                            bias != nullptr ? Tensor(*bias) : Tensor());
  }
  if (!operand.is_same(x)) {
    recompute_x = nullptr;
  }
  return linear(operand, weight, bias != nullptr ? Tensor(*bias) : Tensor(),
                rounded_weight(weight, precision), std::move(recompute_x), sums);
}

Tensor rounded_weight(const nn::Parameter& weight, const Precision& precision) {
  return weight.dtype() == precision.compute ? Tensor() : weight.compute_copy(precision.compute);
}

Tensor add_bias(const Tensor& x, const Tensor& bias) {
  if (!bias.defined()) {
    return x;
  }
  return in_exact() && bias.dim() == 1 ? apply_op(ExactAddBias{}, x, bias)
                                       : (x + bias).to(x.dtype());
}

Tensor float_or_wider(const Tensor& x) {
  return size_of(x.dtype()) < size_of(kFloat32) ? x.to(kFloat32) : x;
}

}  // namespace tapestry
