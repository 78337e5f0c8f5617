#include "parallel_core/frozen_parameters.h"

#include "autograd/tape/grad_mode.h"
#include "autograd/tape/leaf_state.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"

namespace tapestry {

DType trained_dtype(const nn::Parameter& parameter, DType params) {
  return parameter.flags().adapter ? kFloat32 : params;
}

void store_frozen(const nn::Module& model, DType params) {
  const NoGradGuard guard;
  const MemoryKindGuard kind(MemoryKind::kParameter);
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    const nn::Parameter& parameter = *entry.parameter;
    if (!parameter.requires_grad() && !parameter.is_quantized() && parameter.dtype() == kFloat32 &&
        params != kFloat32) {
      set_data(parameter, parameter.detach().to(params));
    }
  }
}

void clear_frozen(const nn::Module& model, DType params) {
  const NoGradGuard guard;
  const MemoryKindGuard kind(MemoryKind::kParameter);
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    if (!entry.parameter->requires_grad() && !entry.parameter->is_quantized()) {
      set_data(*entry.parameter, zeros(entry.parameter->shape(), params));
    }
  }
}

std::map<std::string, Tensor> frozen_parameters(const nn::Module& model) {
  std::map<std::string, Tensor> out;
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    if (!entry.parameter->requires_grad()) {
      out.emplace(entry.name, *entry.parameter);
    }
  }
  return out;
}

}  // namespace tapestry
