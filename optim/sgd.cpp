#include "optim/sgd.h"

#include "autograd/kernels/optimizer.h"
#include "autograd/tensor/error.h"

namespace tapestry::optim {

SGD::SGD(const TensorList& params, SGDOptions options)
    : SGD(single_group(params, options.lr, options.weight_decay), options) {}

SGD::SGD(std::vector<ParamGroup> groups, SGDOptions options)
    : Optimizer(std::move(groups)), options_(options) {
  const auto not_negative = [](const char* key, double value) {
    check<ValueError>(value >= 0, "SGD: ", key, " must not be negative, got ", value);
  };
  not_negative("lr", options.lr);
  not_negative("momentum", options.momentum);
  not_negative("dampening", options.dampening);
  not_negative("weight_decay", options.weight_decay);
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

std::vector<std::string> SGD::state_names() const {
  return options_.momentum == 0 ? std::vector<std::string>()
                                : std::vector<std::string>{"momentum_buffer"};
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
         .lr = u.group->lr,
         .weight_decay = u.group->weight_decay});
  }
  kernels::sgd(tensors, {.momentum = options_.momentum,
                         .dampening = options_.dampening,
                         .nesterov = options_.nesterov,
                         .grad_scale = transform.scale,
                         .grad_limit = transform.limit});
}

}  // namespace tapestry::optim
