#include "optim/adam.h"

#include "autograd/kernels/optimizer.h"
#include "autograd/tensor/error.h"

namespace tapestry::optim {

AdamBase::AdamBase(std::vector<ParamGroup> groups, AdamOptions options, bool decoupled)
    : Optimizer(std::move(groups)), options_(options), decoupled_(decoupled) {
  check<ValueError>(
      options.beta1 >= 0 && options.beta1 < 1 && options.beta2 >= 0 && options.beta2 < 1,
      "Adam: betas must lie in [0, 1), got ", options.beta1, " and ", options.beta2);
  const auto not_negative = [](const char* key, double value) {
    check<ValueError>(value >= 0, "Adam: ", key, " must not be negative, got ", value);
  };
  not_negative("lr", options.lr);
  not_negative("eps", options.eps);
  not_negative("weight_decay", options.weight_decay);
}

std::vector<std::string> AdamBase::state_names() const { return {"exp_avg", "exp_avg_sq"}; }

void AdamBase::update(const ParamGroup& group,
                      const Tensor& parameter,
                      const Tensor& grad,
                      double grad_scale,
                      ParamState& state) {
  kernels::adamw(parameter.dtype(), grad.dtype(), parameter.numel(), parameter.raw(), grad.raw(),
                 state.tensors.at("exp_avg").raw(), state.tensors.at("exp_avg_sq").raw(), group.lr,
                 options_.beta1, options_.beta2, options_.eps, group.weight_decay, decoupled_,
                 state.step, grad_scale);
}

}  // namespace tapestry::optim
