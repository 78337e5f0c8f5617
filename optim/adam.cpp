#include "optim/adam.h"

#include "autograd/kernels/optimizer.h"
#include "autograd/tensor/error.h"

namespace tapestry::optim {

AdamBase::AdamBase(std::vector<ParamGroup> groups, AdamOptions options, bool decoupled)
    : Optimizer(std::move(groups), options.storage), options_(options), decoupled_(decoupled) {
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

void AdamBase::update(std::span<const Update> updates, const GradTransform& transform) {
  std::vector<kernels::AdamTensor> tensors;
  for (const Update& u : updates) {
    const Tensor& exp_avg = u.state->tensors.at("exp_avg");
    const Tensor& exp_avg_sq = u.state->tensors.at("exp_avg_sq");
    const Tensor& low_bits = u.state->low_bits;
    tensors.push_back(
        {.n = u.values.numel(),
         .param_dtype = u.values.dtype(),
         .p = u.values.raw(),
         .low_bits = low_bits.defined() ? static_cast<uint16_t*>(low_bits.raw()) : nullptr,
         .grad_dtype = u.grad.dtype(),
         .g = u.grad.raw(),
         .exp_avg_dtype = exp_avg.dtype(),
         .exp_avg = exp_avg.raw(),
         .exp_avg_sq_dtype = exp_avg_sq.dtype(),
         .exp_avg_sq = exp_avg_sq.raw(),
         .stream = u.stream,
         .first = u.first,
         .copy_dtype = u.copy.defined() ? u.copy.dtype() : kBFloat16,
         .copy = u.copy.defined() ? u.copy.raw() : nullptr,
         .lr = u.group->lr,
         .weight_decay = u.group->weight_decay,
         .step = u.state->step});
  }
  kernels::adamw(tensors, {.beta1 = options_.beta1,
                           .beta2 = options_.beta2,
                           .eps = options_.eps,
                           .decoupled = decoupled_,
                           .grad_scale = transform.scale,
                           .grad_limit = transform.limit,
                           .seed = storage().seed});
}

}  // namespace tapestry::optim
