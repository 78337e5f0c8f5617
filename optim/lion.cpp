#include "optim/lion.h"

#include <map>

#include "autograd/kernels/optimizer.h"
#include "autograd/tensor/error.h"
#include "optim/check_settings.h"

namespace tapestry::optim {

Lion::Lion(const TensorList& params, LionOptions options) : Lion(single_group(params), options) {}

Lion::Lion(std::vector<ParamGroup> groups, LionOptions options)
    : Optimizer(std::move(groups), {options.lr, options.weight_decay}, options.storage),
      options_(options) {
  check_betas("Lion", {options.beta1, options.beta2});
  for (const ParamGroup& group : param_groups()) {
    Lion::check_group(group);
  }
  check_not_negative("Lion", {{"lr", options.lr}, {"weight_decay", options.weight_decay}});
  check<ValueError>(
      options.storage.exp_avg_sq_dtype == kFloat32 && !options.storage.store_param_remainders,
      "Lion: has no exp_avg_sq, in which store_param_remainders keeps bits");
}

void Lion::check_group(const ParamGroup& group) const {
  if (group.betas) {
    check_betas("Lion", *group.betas);
  }
}

std::vector<StateKind> Lion::state_kinds(const ParamGroup& /*group*/, bool /*is_matrix*/) const {
  return {{"exp_avg"}};
}

void Lion::update(std::span<const Update> updates, const GradTransform& transform) {
  // The kernel takes the parameters of one pair of betas at a time.
  std::map<std::array<double, 2>, std::vector<kernels::LionTensor>> by_betas;
  for (const Update& u : updates) {
    const Tensor& exp_avg = u.state->tensors.at("exp_avg");
    by_betas[u.group->betas.value_or(std::array{options_.beta1, options_.beta2})].push_back(
        {.n = u.values.numel(),
         .param_dtype = u.values.dtype(),
         .p = u.values.raw(),
         .grad_dtype = u.grad.dtype(),
         .g = u.grad.raw(),
         .exp_avg_dtype = exp_avg.dtype(),
         .exp_avg = exp_avg.raw(),
         .rounding = u.rounding,
         .copy_dtype = u.copy.defined() ? u.copy.dtype() : kBFloat16,
         .copy = u.copy.defined() ? u.copy.raw() : nullptr,
         .lr = *u.group->lr,
         .weight_decay = *u.group->weight_decay});
  }
  for (const auto& [betas, tensors] : by_betas) {
    kernels::lion(tensors, {.beta1 = betas[0],
                            .beta2 = betas[1],
                            .grad_scale = transform.scale,
                            .grad_limit = transform.limit,
                            .seed = storage().seed});
  }
}

}  // namespace tapestry::optim
