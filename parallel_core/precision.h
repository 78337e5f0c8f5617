// Which dtype each part of a transformer computes in.
#pragma once

#include <functional>

#include "autograd/ops/exact_runs.h"
#include "autograd/tensor/tensor.h"
#include "nn/parameter.h"
#include "parallel_core/config/config.h"

namespace tapestry {

/// The dtypes of a model, resolved from its configuration.
///
/// With fused kernels, what lies between matrix products is stored in the compute dtype and each
/// kernel computes in float32 inside. Without, it is float32, and only the operands and the results
/// of matrix products are rounded: slower, but every rounding is one that can be named.
struct Precision {
  DType compute = kFloat32;     ///< operands and results of matrix products
  DType activation = kFloat32;  ///< between matrix products
  DType residual = kFloat32;    ///< the sum that layers add to
  DType norm = kFloat32;        ///< what a norm reads; its sums are float32 in any case
  DType softmax = kFloat32;     ///< attention's softmax
  DType rotary = kFloat32;      ///< the rotation of queries and keys
  bool fused = true;
};

Precision precision_of(const TransformerConfig& config);

/// y = x weight^T + bias in `precision.compute`, in the activations' dtype. x has any floating
/// dtype; bias may be null. `recompute_x` as in linear(), used where x has the compute dtype
/// already and kernels are fused; `sums` as there. In exact mode ValueError for a quantized weight,
/// and for 16 bits without fused kernels, whose float32 weights get no exact gradients.
Tensor project(const Tensor& x,
               const nn::Parameter& weight,
               const nn::Parameter* bias,
               const Precision& precision,
               std::function<Tensor()> recompute_x = nullptr,
               const LinearSums& sums = {});

/// Output of a layer and the bias that its caller still has to add (undefined if none).
struct OutputAndBias {
  Tensor output;
  Tensor bias;
};
inline void append_observed(TensorList& out, const OutputAndBias& value) {
  out.insert(out.end(), {value.output, value.bias});
}

/// The weight in the dtype of matrix products, as linear() takes it: undefined if it has that
/// dtype.
Tensor rounded_weight(const nn::Parameter& weight, const Precision& precision);

/// 16-bit values as float32; others as they are.
Tensor float_or_wider(const Tensor& x);

/// x + bias in x's dtype, rounded once; x itself if bias is undefined. In exact mode each element
/// of the gradient is a term of the bias's, which has one axis.
Tensor add_bias(const Tensor& x, const Tensor& bias);

}  // namespace tapestry
