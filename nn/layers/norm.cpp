#include "nn/layers/norm.h"

#include "autograd/ops/norm.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"

namespace tapestry::nn {

LayerNorm::LayerNorm(int64_t size, NormOptions options)
    : weight_(register_parameter("weight", ones({size}, options.dtype), {.decay = false})),
      eps_(options.eps) {
  if (options.bias) {
    bias_ = &register_parameter("bias", zeros({size}, options.dtype), {.decay = false});
  }
}

std::string LayerNorm::extra_repr() const { return concat(weight_.numel(), ", eps=", eps_); }

Tensor LayerNorm::forward(const Tensor& x) {
  return layer_norm(x, weight_, bias_ != nullptr ? static_cast<const Tensor&>(*bias_) : Tensor(),
                    eps_);
}

RMSNorm::RMSNorm(int64_t size, NormOptions options)
    : weight_(register_parameter("weight", ones({size}, options.dtype), {.decay = false})),
      eps_(options.eps) {}

std::string RMSNorm::extra_repr() const { return concat(weight_.numel(), ", eps=", eps_); }

Tensor RMSNorm::forward(const Tensor& x) { return rms_norm(x, weight_, eps_); }

}  // namespace tapestry::nn
