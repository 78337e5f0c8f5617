// Activations and dropout as modules.
#pragma once

#include <string>

#include "autograd/ops/activation.h"
#include "autograd/ops/elementwise.h"
#include "nn/module.h"

namespace tapestry::nn {

class ReLU final : public UnaryModule {
 public:
  std::string type_name() const override { return "ReLU"; }
  Tensor forward(const Tensor& x) override { return relu(x); }
};

/// The erf form, or its tanh approximation.
class GELU final : public UnaryModule {
 public:
  explicit GELU(bool approximate = false) : approximate_(approximate) {}
  std::string type_name() const override { return "GELU"; }
  std::string extra_repr() const override { return approximate_ ? "tanh" : ""; }
  Tensor forward(const Tensor& x) override { return approximate_ ? gelu_tanh(x) : gelu(x); }

 private:
  bool approximate_;
};

class SiLU final : public UnaryModule {
 public:
  std::string type_name() const override { return "SiLU"; }
  Tensor forward(const Tensor& x) override { return silu(x); }
};

class Tanh final : public UnaryModule {
 public:
  std::string type_name() const override { return "Tanh"; }
  Tensor forward(const Tensor& x) override { return tanh(x); }
};

class Sigmoid final : public UnaryModule {
 public:
  std::string type_name() const override { return "Sigmoid"; }
  Tensor forward(const Tensor& x) override { return sigmoid(x); }
};

/// Zeroes each element with probability p while training and scales the others by 1 / (1 - p);
/// numbers come from the rank's default generator. ValueError unless p lies in [0, 1].
class Dropout final : public UnaryModule {
 public:
  explicit Dropout(double p = 0.5);
  std::string type_name() const override { return "Dropout"; }
  std::string extra_repr() const override;
  Tensor forward(const Tensor& x) override;

 private:
  double p_;
};

}  // namespace tapestry::nn
