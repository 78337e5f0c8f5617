#include "parallel_core/lora/freeze_base.h"

#include <algorithm>
#include <set>
#include <string>

#include "parallel_core/lora/adapter_plan.h"
#include "parallel_core/tensor_parallel/layers.h"

namespace tapestry {

void freeze_base(nn::Module& model, const TransformerConfig& config) {
  if (!config.lora.use_lora) {
    return;
  }
  const AdapterPlan plan = plan_adapter(config);
  const std::set<std::string> saved(plan.saved_modules.begin(), plan.saved_modules.end());
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    nn::Parameter& parameter = *entry.parameter;
    const auto& logical = parameter.logical();
    const bool is_saved =
        !logical.empty() && std::all_of(logical.begin(), logical.end(), [&](const auto& tensor) {
          return saved.contains(tensor.name);
        });
    if (!parameter.flags().adapter && !is_saved) {
      parameter.set_requires_grad(false);
    }
  }
}

void start_magnitudes(nn::Module& model) {
  for (const nn::Module::NamedModule& entry : model.named_modules()) {
    if (const auto* column = dynamic_cast<const ColumnParallelLinear*>(entry.module)) {
      column->start_magnitudes();
    } else if (const auto* row = dynamic_cast<const RowParallelLinear*>(entry.module)) {
      row->start_magnitudes();
    }
  }
}

}  // namespace tapestry
