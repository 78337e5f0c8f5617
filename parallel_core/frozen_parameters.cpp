#include "parallel_core/frozen_parameters.h"

#include "autograd/ops/map.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tape/leaf_state.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/deferred_values.h"

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
      const Tensor stored = empty(parameter.shape(), params);
      const Tensor flat = stored.view({-1});
      for_start_values(parameter.detach(), 1, [&](int64_t first, const Tensor& values) {
        copy_values(values, flat.slice(0, first, first + values.numel()));
      });
      set_data(parameter, stored);
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
