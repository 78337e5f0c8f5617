#include "parallel_core/distributed/on_demand_gradients.h"

#include "autograd/kernels/reduce.h"
#include "autograd/tape/main_grad.h"
#include "parallel_core/distributed/finalize_model_grads.h"
#include "parallel_core/distributed/gradient_numbers.h"

namespace tapestry {

OnDemandGradients::OnDemandGradients(const std::vector<nn::Module::NamedParameter>& parameters,
                                     const Options& options)
    : seed_(options.seed) {
  for (const nn::Module::NamedParameter& entry : parameters) {
    attach_main_grad(*entry.parameter, options.dtype);
    parameters_.push_back(entry.parameter);
    names_.push_back(entry.name);
    if (options.dtype == kBFloat16 && entry.parameter->numel() > 0) {
      number_main_grad(*entry.parameter, gradient_numbers(entry.name, *entry.parameter));
    }
  }
}

void OnDemandGradients::start_step(int64_t step, int64_t /*backward_passes*/) {
  const uint64_t stream = combine(stream_of("main_grad"), static_cast<uint64_t>(step));
  for (const nn::Parameter* parameter : parameters_) {
    release_main_grad(*parameter, {seed_, stream, 0});
  }
  squares_of_step().clear();
  is_scaled_ = false;
}

void OnDemandGradients::finish_reduce() {
  finalize_model_grads(parameters_);
  for (size_t i = 0; measures() && i < parameters_.size(); ++i) {
    if (is_measured(names_[i])) {
      squares_of_step()[names_[i]] = squares_of(*parameters_[i]);
    }
  }
}

double OnDemandGradients::squares_of(const nn::Parameter& parameter) {
  const Tensor gradient = parameter.main_grad();
  return kernels::sum_of_squares(gradient.dtype(), gradient.numel(), gradient.raw());
}

void OnDemandGradients::scale(double factor) {
  for (const nn::Parameter* parameter : parameters_) {
    const Tensor gradient = parameter->main_grad();
    kernels::scale_inplace(gradient.dtype(), gradient.numel(), factor, gradient.raw());
  }
  is_scaled_ = true;
}

double OnDemandGradients::squares(const std::function<bool(const nn::Parameter&)>& counts) const {
  double sum = 0;
  for (size_t i = parameters_.size(); i-- > 0;) {  // as buckets have them
    if (counts(*parameters_[i])) {
      // What was measured is the same sum; no second pass over the memory.
      const auto measured = local_squares().find(names_[i]);
      sum += measured != local_squares().end() && !is_scaled_ ? measured->second
                                                              : squares_of(*parameters_[i]);
    }
  }
  return sum;
}

ModelGradients::Held OnDemandGradients::held_gradient(
    const nn::Module::NamedParameter& entry) const {
  return {entry.parameter->main_grad(), 0};
}

}  // namespace tapestry
