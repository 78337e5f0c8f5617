#include "parallel_core/distributed/on_demand_gradients.h"

#include <cmath>
#include <utility>

#include "autograd/kernels/exact/exact_sums.h"
#include "autograd/kernels/reduce.h"
#include "autograd/tape/main_grad.h"
#include "autograd/tensor/error.h"
#include "parallel_core/distributed/finalize_model_grads.h"
#include "parallel_core/distributed/gradient_numbers.h"

namespace tapestry {

OnDemandGradients::OnDemandGradients(const std::vector<nn::Module::NamedParameter>& parameters,
                                     const Options& options)
    : exact_(options.exact), seed_(options.seed) {
  check<TypeError>(options.dtype == kFloat32 || options.dtype == kBFloat16,
                   "gradients are summed in float32 or bfloat16, not ", name_of(options.dtype));
  check<ValueError>(!exact_ || options.dtype == kFloat32,
                    "exact sums of gradients are rounded to float32, not ", name_of(options.dtype));
  for (const nn::Module::NamedParameter& entry : parameters) {
    attach_main_grad(*entry.parameter, exact_ ? kFloat64 : options.dtype);
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
    if (exact_) {
      attach_main_grad(*parameter, kFloat64);
    } else {
      release_main_grad(*parameter, {seed_, stream, 0});
    }
  }
  set_largest_sum({});
  squares_of_step().clear();
  is_scaled_ = false;
}

void OnDemandGradients::finish_reduce() {
  finalize_model_grads(parameters_);
  if (exact_) {
    round_gradients();
  }
  for (size_t i = 0; measures() && i < parameters_.size(); ++i) {
    if (is_measured(names_[i])) {
      squares_of_step()[names_[i]] = squares_of(*parameters_[i]);
    }
  }
}

void OnDemandGradients::round_gradients() {
  LargestSum largest;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const double units = round_main_grad(*parameters_[i]);
    if (std::isnan(units)) {
      largest.units = units;
    } else if (units > largest.units) {  // never, once that is NaN
      largest = {units, units > kernels::kExactLimit ? names_[i] : std::string()};
    }
  }
  set_largest_sum(std::move(largest));
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
