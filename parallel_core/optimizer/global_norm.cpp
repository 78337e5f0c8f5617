#include "parallel_core/optimizer/global_norm.h"

#include <cmath>

#include "autograd/kernels/reduce.h"
#include "autograd/ops/map.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/parallel_state.h"

namespace tapestry {

bool counts_in_norm(const nn::Parameter& parameter) {
  const nn::ParameterFlags& flags = parameter.flags();
  return !flags.shared &&
         (flags.tp == nn::TensorParallel::kSharded || get_tensor_model_parallel_rank() == 0);
}

double sum_over_model_parallel(double value) {
  const Tensor sum = full({1}, value, kFloat64);
  for (ProcessGroup* group :
       {&get_tensor_model_parallel_group(), &get_pipeline_model_parallel_group()}) {
    if (group->size() > 1) {
      group->all_reduce(sum);
    }
  }
  return sum.item();
}

double global_grad_norm(const nn::Module& model, const DistributedDataParallel* data_parallel) {
  double squares = 0;
  if (data_parallel != nullptr) {
    squares = data_parallel->squares(counts_in_norm);
  } else {
    for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
      const Tensor gradient = entry.parameter->grad();
      if (gradient.defined() && counts_in_norm(*entry.parameter)) {
        const Tensor values = dense(gradient);
        squares += kernels::sum_of_squares(values.dtype(), values.numel(), values.raw());
      }
    }
  }
  return std::sqrt(sum_over_model_parallel(squares));
}

}  // namespace tapestry
