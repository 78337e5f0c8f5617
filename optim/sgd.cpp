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
}

std::vector<std::string> SGD::state_names() const {
  return options_.momentum == 0 ? std::vector<std::string>()
                                : std::vector<std::string>{"momentum_buffer"};
}

void SGD::update(const ParamGroup& group,
                 const Tensor& parameter,
                 const Tensor& grad,
                 double grad_scale,
                 ParamState& state) {
  void* buffer = options_.momentum == 0 ? nullptr : state.tensors.at("momentum_buffer").raw();
  kernels::sgd(parameter.dtype(), grad.dtype(), parameter.numel(), parameter.raw(), grad.raw(),
               buffer, group.lr, options_.momentum, options_.dampening, group.weight_decay,
               options_.nesterov, state.step == 1, grad_scale);
}

}  // namespace tapestry::optim
