// Normalization layers over the last axis.
#pragma once

#include <string>

#include "nn/module.h"

namespace tapestry::nn {

struct NormOptions {
  double eps = 1e-5;
  bool bias = true;  ///< LayerNorm only
  DType dtype = kFloat32;
};

/// (x - mean) / sqrt(var + eps) * weight + bias; see autograd/ops/norm.h. weight starts at one,
/// bias at zero; neither decays.
class LayerNorm final : public UnaryModule {
 public:
  explicit LayerNorm(int64_t size, NormOptions options = {});

  std::string type_name() const override { return "LayerNorm"; }
  std::string extra_repr() const override;
  Tensor forward(const Tensor& x) override;

 private:
  Parameter& weight_;
  Parameter* bias_ = nullptr;
  double eps_;
};

/// x / sqrt(mean(x^2) + eps) * weight.
class RMSNorm final : public UnaryModule {
 public:
  explicit RMSNorm(int64_t size, NormOptions options = {});

  std::string type_name() const override { return "RMSNorm"; }
  std::string extra_repr() const override;
  Tensor forward(const Tensor& x) override;

 private:
  Parameter& weight_;
  double eps_;
};

}  // namespace tapestry::nn
