#include "parallel_core/transformer/norm.h"

#include <utility>

#include "autograd/ops/elementwise.h"
#include "autograd/tensor/error.h"
#include "parallel_core/parameter_builder.h"
#include "parallel_core/tensor_parallel/tensor_parallel_layout.h"

namespace tapestry {

namespace {

// What the two norms share: rounding, and the sum with the residual stream.
class NormBase : public ParallelNorm {
 public:
  NormBase(double eps, nn::TensorParallel tp, const Precision& precision)
      : eps_(eps), tp_(tp), precision_(precision) {}

  Tensor forward(const Tensor& x) override {
    const Tensor read = precision_.norm == kFloat32 ? x : x.to(precision_.norm);
    return normalize(read, eps_);
  }

  AddNorm sum_and_norm(const OutputAndBias& block, const Tensor& residual) override {
    if (!adds_in_one_pass(residual)) {
      const Tensor sum = ResidualStream{residual, block}.sum(precision_);
      return {sum, (*this)(sum)};
    }
    return add_and_normalize(block.output, residual,
                             {.eps = eps_, .x_bias = block.bias, .dtype = precision_.activation});
  }

  bool adds_in_one_pass(const Tensor& residual) const override {
    return precision_.fused && precision_.norm == kFloat32 &&
           residual.dtype() == precision_.residual;
  }

 protected:
  const Precision& precision() const { return precision_; }
  double eps() const { return eps_; }
  nn::Parameter& make(const char* name, const LogicalInit& init) {
    nn::Parameter& parameter = register_parameter(name, initial_value(init.logical.shape, {init}),
                                                  {.decay = false, .tp = tp_});
    parameter.set_logical({init.logical});
    return parameter;
  }

 private:
  // The result has the activations' dtype.
  virtual Tensor normalize(const Tensor& x, double eps) const = 0;
  virtual AddNorm add_and_normalize(const Tensor& x,
                                    const Tensor& residual,
                                    const AddNormOptions& options) const = 0;

  double eps_;
  nn::TensorParallel tp_;
  Precision precision_;
};

class ParallelLayerNorm final : public NormBase {
 public:
  ParallelLayerNorm(int64_t size,
                    double eps,
                    const std::string& name,
                    nn::TensorParallel tp,
                    double scale,
                    const Precision& precision)
      : NormBase(eps, tp, precision),
        gamma_(make("gamma", whole(name + ".weight", {size}, InitMethod::constant(scale)))),
        beta_(make("beta", whole(name + ".bias", {size}, InitMethod::constant(0)))) {}

  std::string type_name() const override { return "LayerNorm"; }
  std::string extra_repr() const override { return concat(gamma_.numel(), ", eps=", eps()); }

 private:
  Tensor normalize(const Tensor& x, double eps) const override {
    const auto norm = precision().fused ? layer_norm : composed_layer_norm;
    return norm(x, gamma_, beta_, eps, precision().activation);
  }
  AddNorm add_and_normalize(const Tensor& x,
                            const Tensor& residual,
                            const AddNormOptions& options) const override {
    return add_layer_norm(x, residual, gamma_, beta_, options);
  }

  nn::Parameter& gamma_;
  nn::Parameter& beta_;
};

class ParallelRMSNorm final : public NormBase {
 public:
  ParallelRMSNorm(int64_t size,
                  double eps,
                  const std::string& name,
                  nn::TensorParallel tp,
                  double scale,
                  const Precision& precision)
      : NormBase(eps, tp, precision),
        weight_(make("weight", whole(name + ".weight", {size}, InitMethod::constant(scale)))) {}

  std::string type_name() const override { return "RMSNorm"; }
  std::string extra_repr() const override { return concat(weight_.numel(), ", eps=", eps()); }

 private:
  Tensor normalize(const Tensor& x, double eps) const override {
    const auto norm = precision().fused ? rms_norm : composed_rms_norm;
    return norm(x, weight_, eps, precision().activation);
  }
  AddNorm add_and_normalize(const Tensor& x,
                            const Tensor& residual,
                            const AddNormOptions& options) const override {
    return add_rms_norm(x, residual, weight_, options);
  }

  nn::Parameter& weight_;
};

Tensor float_or_wider(const Tensor& x) {
  return size_of(x.dtype()) < size_of(kFloat32) ? x.to(kFloat32) : x;
}

}  // namespace

std::unique_ptr<ParallelNorm> get_norm(const TransformerConfig& config,
                                       int64_t size,
                                       const std::string& logical_name,
                                       nn::TensorParallel tp,
                                       double scale) {
  const Precision precision = precision_of(config);
  if (config.normalization == "LayerNorm") {
    return std::make_unique<ParallelLayerNorm>(size, config.norm_epsilon, logical_name, tp, scale,
                                               precision);
  }
  check<ValueError>(config.normalization == "RMSNorm" || config.normalization == "FusedRMSNorm",
                    "normalization '", config.normalization,
                    "' is not known; choose LayerNorm, RMSNorm or FusedRMSNorm");
  return std::make_unique<ParallelRMSNorm>(size, config.norm_epsilon, logical_name, tp, scale,
                                           precision);
}

std::unique_ptr<ParallelNorm> get_norm(const AllConfig& config, const std::string& logical_name) {
  return get_norm(config.model_config, config.model_config.hidden_size, logical_name,
                  tensor_parallel_layout(config).hidden_gradient());
}

Tensor ResidualStream::sum(const Precision& precision) const {
  if (!pending.output.defined()) {
    return value;
  }
  // Rounded once, as by the norm that adds: a layer that ends a pipeline stage gives the same bits.
  const Tensor block =
      pending.bias.defined() ? float_or_wider(pending.output) + pending.bias : pending.output;
  return (value + block).to(precision.residual);
}

// A call with another input than forward's: that is what an observer sees.
AddNorm ParallelNorm::add(const OutputAndBias& block, const Tensor& residual) {
  if (!adds_in_one_pass(residual)) {
    return sum_and_norm(block, residual);  // calls the norm
  }
  const nn::ModuleScope scope(*this);
  if (!is_observed()) [[likely]] {
    return sum_and_norm(block, residual);
  }
  nn::detail::CallReport report(*this, {block.output, block.bias, residual});
  AddNorm out = sum_and_norm(block, residual);
  report.end(TensorList{out.normed, out.sum});
  return out;
}

AddNorm ResidualStream::normalize(ParallelNorm& norm) const {
  return pending.output.defined() ? norm.add(pending, value) : AddNorm{value, norm(value)};
}

}  // namespace tapestry
