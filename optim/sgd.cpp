#include "optim/sgd.h"

#include "autograd/kernels/optimizer.h"
#include "autograd/tensor/error.h"
#include "optim/check_settings.h"

namespace tapestry::optim {

SGD::SGD(const TensorList& params, SGDOptions options) : SGD(single_group(params), options) {}

SGD::SGD(std::vector<ParamGroup> groups, SGDOptions options)
    : Optimizer(std::move(groups), {options.lr, options.weight_decay}), options_(options) {
  check_not_negative("SGD", {{"lr", options.lr},
                             {"momentum", options.momentum},
                             {"dampening", options.dampening},
                             {"weight_decay", options.weight_decay}});
  check<ValueError>(!options.nesterov || (options.momentum > 0 && options.dampening == 0),
                    "SGD: nesterov needs a momentum above 0 and no dampening, got momentum ",
                    options.momentum, " and dampening ", options.dampening);
  for (const ParamGroup& group : param_groups()) {
    SGD::check_group(group);
  }
}

void SGD::check_group(const ParamGroup& group) const {
  check<ValueError>(!group.betas.has_value(), "SGD: a group has betas, which are Adam's");
}

std::vector<StateKind> SGD::state_kinds(const ParamGroup& /*group*/, bool /*is_matrix*/) const {
  return options_.momentum == 0 ? std::vector<StateKind>()
                                : std::vector<StateKind>{{"momentum_buffer"}};
}

void SGD::update(std::span<const Update> updates, const GradTransform& transform) {
  std::vector<kernels::SgdTensor> tensors;
  for (const Update& u : updates) {
    const bool has_buffer = options_.momentum != 0;
    tensors.push_back(
        {.n = u.values.numel(),
         .param_dtype = u.values.dtype(),
         .p = u.values.raw(),
         .grad_dtype = u.grad.dtype(),
         .g = u.grad.raw(),
         .momentum_buffer = has_buffer ? u.state->tensors.at("momentum_buffer").raw() : nullptr,
         .first_step = u.state->step == 1,
         .copy_dtype = u.copy.defined() ? u.copy.dtype() : kBFloat16,
         .copy = u.copy.defined() ? u.copy.raw() : nullptr,
         .lr = *u.group->lr,
         .weight_decay = *u.group->weight_decay});
  }
  kernels::sgd(tensors, {.momentum = options_.momentum,
                         .dampening = options_.dampening,
                         .nesterov = options_.nesterov,
                         .grad_scale = transform.scale,
                         .grad_limit = transform.limit});
}

}  // namespace tapestry::optim
