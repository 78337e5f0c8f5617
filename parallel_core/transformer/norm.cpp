#include "parallel_core/transformer/norm.h"

#include <utility>

#include "autograd/ops/elementwise.h"
#include "autograd/tensor/error.h"
#include "parallel_core/parameter_builder.h"
#include "parallel_core/tensor_parallel/tensor_parallel_layout.h"

namespace tapestry {

namespace {

// What the two norms share: rounding, gains, and the sum with the residual stream.
class NormBase : public ParallelNorm {
 public:
  NormBase(const TransformerConfig& config, nn::TensorParallel tp)
      : eps_(config.norm_epsilon),
        zero_centered_(config.layernorm_zero_centered_gamma),
        tp_(tp),
        precision_(precision_of(config)) {}

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
  std::string described(int64_t size) const {
    return concat(size, ", eps=", eps_, zero_centered_ ? ", zero-centered gain" : "");
  }
  nn::Parameter& make_gain(const char* name,
                           const std::string& logical,
                           int64_t size,
                           double start) {
    return make(name, whole(concat(logical, ".weight"), {size},
                            InitMethod::constant(zero_centered_ ? start - 1 : start)));
  }
  // What the normalised values are multiplied by.
  Tensor gain(const nn::Parameter& weight) const {
    return zero_centered_ ? float_or_wider(weight) + 1 : Tensor(weight);
  }
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
  bool zero_centered_;
  nn::TensorParallel tp_;
  Precision precision_;
};

class ParallelLayerNorm final : public NormBase {
 public:
  ParallelLayerNorm(const TransformerConfig& config,
                    int64_t size,
                    const std::string& name,
                    nn::TensorParallel tp,
                    double scale)
      : NormBase(config, tp), gamma_(make_gain("gamma", name, size, scale)) {
    if (config.norm_has_bias) {
      beta_ = &make("beta", whole(name + ".bias", {size}, InitMethod::constant(0)));
    }
  }

  std::string type_name() const override { return "LayerNorm"; }
  std::string extra_repr() const override { return described(gamma_.numel()); }

 private:
  Tensor normalize(const Tensor& x, double eps) const override {
    const auto norm = precision().fused ? layer_norm : composed_layer_norm;
    return norm(x, gain(gamma_), bias(), eps, precision().activation);
  }
  AddNorm add_and_normalize(const Tensor& x,
                            const Tensor& residual,
                            const AddNormOptions& options) const override {
    return add_layer_norm(x, residual, gain(gamma_), bias(), options);
  }
  Tensor bias() const { return beta_ != nullptr ? Tensor(*beta_) : Tensor(); }

  nn::Parameter& gamma_;
  nn::Parameter* beta_ = nullptr;
};

class ParallelRMSNorm final : public NormBase {
 public:
  ParallelRMSNorm(const TransformerConfig& config,
                  int64_t size,
                  const std::string& name,
                  nn::TensorParallel tp,
                  double scale)
      : NormBase(config, tp), size_(size) {
    if (config.norm_has_gain) {
      weight_ = &make_gain("weight", name, size, scale);
    }
  }

  std::string type_name() const override { return "RMSNorm"; }
  std::string extra_repr() const override { return described(size_); }

 private:
  Tensor normalize(const Tensor& x, double eps) const override {
    const auto norm = precision().fused ? rms_norm : composed_rms_norm;
    return norm(x, gains(), eps, precision().activation);
  }
  AddNorm add_and_normalize(const Tensor& x,
                            const Tensor& residual,
                            const AddNormOptions& options) const override {
    return add_rms_norm(x, residual, gains(), options);
  }
  Tensor gains() const { return weight_ != nullptr ? gain(*weight_) : Tensor(); }

  int64_t size_;
  nn::Parameter* weight_ = nullptr;
};

}  // namespace

std::unique_ptr<ParallelNorm> get_norm(const TransformerConfig& config,
                                       int64_t size,
                                       const std::string& logical_name,
                                       nn::TensorParallel tp,
                                       double scale) {
  if (config.normalization == "LayerNorm") {
    return std::make_unique<ParallelLayerNorm>(config, size, logical_name, tp, scale);
  }
  check<ValueError>(config.normalization == "RMSNorm" || config.normalization == "FusedRMSNorm",
                    "normalization '", config.normalization,
                    "' is not known; choose LayerNorm, RMSNorm or FusedRMSNorm");
  return std::make_unique<ParallelRMSNorm>(config, size, logical_name, tp, scale);
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
