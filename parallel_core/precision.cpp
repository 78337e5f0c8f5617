#include "parallel_core/precision.h"

#include "autograd/ops/elementwise.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/transformer/quantized_matrix.h"
#include "autograd/tensor/dtype.h"

namespace tapestry {

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
               std::function<Tensor()> recompute_x) {
  const DType compute = precision.compute;
  const Tensor operand = x.to(compute);
  const bool quantized = weight.is_quantized();
  if (!precision.fused) {
    const Tensor y = (quantized ? linear_quantized(operand, weight.quantized())
                                : linear(operand, weight.to(compute)))
                         .to(precision.activation);
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
                rounded_weight(weight, precision), std::move(recompute_x));
}

Tensor rounded_weight(const nn::Parameter& weight, const Precision& precision) {
  return weight.dtype() == precision.compute ? Tensor() : weight.compute_copy(precision.compute);
}

Tensor add_bias(const Tensor& x, const Tensor& bias) {
  return bias.defined() ? (x + bias).to(x.dtype()) : x;
}

Tensor float_or_wider(const Tensor& x) {
  return size_of(x.dtype()) < size_of(kFloat32) ? x.to(kFloat32) : x;
}

}  // namespace tapestry
