#include "parallel_core/transformer/norm.h"

#include "autograd/ops/norm.h"
#include "autograd/tensor/error.h"
#include "parallel_core/transformer/parameter_builder.h"

namespace tapestry {

namespace {

class ParallelLayerNorm final : public nn::UnaryModule {
 public:
  ParallelLayerNorm(int64_t size, double eps, const std::string& name, double scale, bool fused)
      : gamma_(make("gamma", whole(name + ".weight", {size}, InitMethod::constant(scale)))),
        beta_(make("beta", whole(name + ".bias", {size}, InitMethod::constant(0)))),
        eps_(eps),
        function_(fused ? layer_norm : composed_layer_norm) {}

  std::string type_name() const override { return "LayerNorm"; }
  std::string extra_repr() const override { return concat(gamma_.numel(), ", eps=", eps_); }
  Tensor forward(const Tensor& x) override { return function_(x, gamma_, beta_, eps_); }

 private:
  nn::Parameter& make(const char* name, const LogicalInit& init) {
    nn::Parameter& parameter =
        register_parameter(name, initial_value(init.logical.shape, {init}), {.decay = false});
    parameter.set_logical({init.logical});
    return parameter;
  }

  nn::Parameter& gamma_;
  nn::Parameter& beta_;
  double eps_;
  Tensor (*function_)(const Tensor&, const Tensor&, const Tensor&, double);
};

class ParallelRMSNorm final : public nn::UnaryModule {
 public:
  ParallelRMSNorm(int64_t size, double eps, const std::string& name, double scale, bool fused)
      : weight_(register_parameter(
            "weight",
            initial_value({size}, {whole(name + ".weight", {size}, InitMethod::constant(scale))}),
            {.decay = false})),
        eps_(eps),
        function_(fused ? rms_norm : composed_rms_norm) {
    weight_.set_logical({whole(name + ".weight", {size}, InitMethod::constant(scale)).logical});
  }

  std::string type_name() const override { return "RMSNorm"; }
  std::string extra_repr() const override { return concat(weight_.numel(), ", eps=", eps_); }
  Tensor forward(const Tensor& x) override { return function_(x, weight_, eps_); }

 private:
  nn::Parameter& weight_;
  double eps_;
  Tensor (*function_)(const Tensor&, const Tensor&, double);
};

}  // namespace

std::unique_ptr<nn::UnaryModule> get_norm(const TransformerConfig& config,
                                          int64_t size,
                                          const std::string& logical_name,
                                          double scale) {
  if (config.normalization == "LayerNorm") {
    return std::make_unique<ParallelLayerNorm>(size, config.norm_epsilon, logical_name, scale,
                                               config.use_fused_kernels);
  }
  check<ValueError>(config.normalization == "RMSNorm" || config.normalization == "FusedRMSNorm",
                    "normalization '", config.normalization,
                    "' is not known; choose LayerNorm, RMSNorm or FusedRMSNorm");
  return std::make_unique<ParallelRMSNorm>(size, config.norm_epsilon, logical_name, scale,
                                           config.use_fused_kernels);
}

Tensor apply_norm(nn::UnaryModule& norm, const Tensor& x, const Precision& precision) {
  const Tensor read = precision.norm == kFloat32 ? x : x.to(precision.norm);
  return norm(read).to(precision.activation);
}

}  // namespace tapestry
