#include "optim/adam.h"

#include <array>
#include <map>

#include "autograd/kernels/optimizer.h"
#include "optim/check_settings.h"

namespace tapestry::optim {

AdamBase::AdamBase(std::vector<ParamGroup> groups, AdamOptions options, bool decoupled)
    : Optimizer(std::move(groups), {options.lr, options.weight_decay}, options.storage),
      options_(options),
      decoupled_(decoupled) {
  check_betas("Adam", {options.beta1, options.beta2});
  for (const ParamGroup& group : param_groups()) {
    AdamBase::check_group(group);
  }
  check_not_negative(
      "Adam", {{"lr", options.lr}, {"eps", options.eps}, {"weight_decay", options.weight_decay}});
}

void AdamBase::check_group(const ParamGroup& group) const {
  if (group.betas) {
    check_betas("Adam", *group.betas);
  }
}

std::vector<StateKind> AdamBase::state_kinds(const ParamGroup& /*group*/,
                                             bool /*is_matrix*/) const {
  return {{"exp_avg"}, {"exp_avg_sq"}};
}

void AdamBase::update(std::span<const Update> updates, const GradTransform& transform) {
  // The kernel takes the parameters of one pair of betas at a time.
  std::map<std::array<double, 2>, std::vector<kernels::AdamTensor>> by_betas;
  for (const Update& u : updates) {
    const Tensor& exp_avg = u.state->tensors.at("exp_avg");
    const Tensor& exp_avg_sq = u.state->tensors.at("exp_avg_sq");
    const Tensor& low_bits = u.state->low_bits;
    by_betas[u.group->betas.value_or(std::array{options_.beta1, options_.beta2})].push_back(
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
         .rounding = u.rounding,
         .copy_dtype = u.copy.defined() ? u.copy.dtype() : kBFloat16,
         .copy = u.copy.defined() ? u.copy.raw() : nullptr,
         .lr = *u.group->lr,
         .weight_decay = *u.group->weight_decay,
         .step = u.state->step});
  }
  for (const auto& [betas, tensors] : by_betas) {
    kernels::adamw(tensors, {.beta1 = betas[0],
                             .beta2 = betas[1],
                             .eps = options_.eps,
                             .decoupled = decoupled_,
                             .grad_scale = transform.scale,
                             .grad_limit = transform.limit,
                             .seed = storage().seed});
  }
}

}  // namespace tapestry::optim
