#include "parallel_core/distributed/on_demand_gradients.h"

#include "autograd/kernels/reduce.h"
#include "autograd/tape/main_grad.h"
#include "parallel_core/distributed/finalize_model_grads.h"

namespace tapestry {

OnDemandGradients::OnDemandGradients(const std::vector<nn::Module::NamedParameter>& parameters,
                                     const Options& options)
    : seed_(options.seed) {
  for (const nn::Module::NamedParameter& entry : parameters) {
    attach_main_grad(*entry.parameter, options.dtype);
    parameters_.push_back(entry.parameter);
    streams_.push_back(combine(stream_of("main_grad"), stream_of(entry.name)));
  }
}

void OnDemandGradients::start_step(int64_t step, int64_t /*backward_passes*/) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    release_main_grad(*parameters_[i],
                      {seed_, combine(streams_[i], static_cast<uint64_t>(step)), 0});
  }
}

void OnDemandGradients::finish_reduce() { finalize_model_grads(parameters_); }

void OnDemandGradients::scale(double factor) {
  for (const nn::Parameter* parameter : parameters_) {
    const Tensor gradient = parameter->main_grad();
    kernels::scale_inplace(gradient.dtype(), gradient.numel(), factor, gradient.raw());
  }
}

double OnDemandGradients::squares(const std::function<bool(const nn::Parameter&)>& counts) const {
  double sum = 0;
  for (auto i = parameters_.rbegin(); i != parameters_.rend(); ++i) {  // as buckets have them
    if (counts(**i)) {
      const Tensor gradient = (*i)->main_grad();
      sum += kernels::sum_of_squares(gradient.dtype(), gradient.numel(), gradient.raw());
    }
  }
  return sum;
}

ModelGradients::Held OnDemandGradients::held_gradient(
    const nn::Module::NamedParameter& entry) const {
  return {entry.parameter->main_grad(), 0};
}

}  // namespace tapestry
