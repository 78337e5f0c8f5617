#include "parallel_core/distributed/finalize_model_grads.h"

#include "autograd/ops/elementwise.h"
#include "autograd/ops/map.h"
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
    ProcessGroup& group = get_pipeline_model_parallel_group();
    const int other = parameter.flags().shared ? 0 : group.size() - 1;
    const Tensor theirs = zeros_like(gradient);
    const WorkHandle sent = group.send_async(gradient.detach(), other);
    group.receive(theirs, other);
    sent->wait();
    copy_values(gradient + theirs, gradient);
    gradient.bump_version();
  }
}

}  // namespace tapestry
