#include "parallel_core/distributed/finalize_model_grads.h"

#include "autograd/tensor/factory.h"
#include "parallel_core/parallel_state.h"

namespace tapestry {

void sum_tied_embedding_gradients(const nn::Module& model) {
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    const nn::Parameter& parameter = *entry.parameter;
    if (!parameter.flags().shared && !parameter.flags().has_copy) {
      continue;
    }
    Tensor gradient = parameter.grad();
    if (!gradient.defined()) {
      gradient = zeros_like(parameter);
      parameter.set_grad(gradient);
    }
    get_embedding_group().all_reduce(gradient);
    gradient.bump_version();
  }
}

}  // namespace tapestry
