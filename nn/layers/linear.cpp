#include "nn/layers/linear.h"

#include <cmath>

#include "autograd/ops/matmul.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "nn/init.h"

namespace tapestry::nn {

namespace {

Tensor uniform_start(const Shape& shape, int64_t fan_in, DType dtype) {
  Tensor t = empty(shape, dtype);
  const double bound = 1.0 / std::sqrt(static_cast<double>(std::max<int64_t>(fan_in, 1)));
  init::uniform_(t, -bound, bound);
  return t;
}

}  // namespace

Linear::Linear(int64_t in_features, int64_t out_features, LinearOptions options)
    : weight_(register_parameter(
          "weight", uniform_start({out_features, in_features}, in_features, options.dtype))) {
  if (options.bias) {
    bias_ = &register_parameter("bias", uniform_start({out_features}, in_features, options.dtype),
                                {.decay = false});
  }
}

std::string Linear::extra_repr() const {
  return concat("in=", weight_.size(1), ", out=", weight_.size(0),
                bias_ != nullptr ? ", bias" : "");
}

Tensor Linear::forward(const Tensor& x) {
  return bias_ != nullptr ? linear(x, weight_, *bias_) : linear(x, weight_);
}

}  // namespace tapestry::nn
