// Fully connected layer.
#pragma once

#include <string>

#include "nn/module.h"

namespace tapestry::nn {

struct LinearOptions {
  bool bias = true;
  DType dtype = kFloat32;
};

/// y = x W^T + b; x [.., in], W [out, in], b [out], y [.., out]. W and b start uniform in
/// +-1 / sqrt(in), drawn from the rank's default generator.
class Linear final : public UnaryModule {
 public:
  Linear(int64_t in_features, int64_t out_features, LinearOptions options = {});

  std::string type_name() const override { return "Linear"; }
  std::string extra_repr() const override;
  Tensor forward(const Tensor& x) override;
  Parameter& weight() const { return weight_; }
  /// Null without bias.
  Parameter* bias() const { return bias_; }

 private:
  Parameter& weight_;
  Parameter* bias_ = nullptr;
};

}  // namespace tapestry::nn
