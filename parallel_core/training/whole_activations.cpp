#include "parallel_core/training/whole_activations.h"

#include <string_view>

#include "autograd/ops/shape_ops.h"
#include "autograd/tape/grad_mode.h"
#include "parallel_core/context_parallel/context_parallel_layout.h"
#include "parallel_core/tensor_parallel/mappings.h"
#include "parallel_core/tensor_parallel/tensor_parallel_layout.h"

namespace tapestry {

namespace {

// With what the other tensor-parallel ranks have.
Tensor over_tensor_parallel(std::string_view name,
                            const Tensor& own,
                            const TransformerConfig& config,
                            const TensorParallelLayout& layout) {
  const auto gathered = [&](int64_t axis) {
    return gather_from_model_parallel_region(own, axis, *layout.group);
  };
  if (name.ends_with(".attention.context")) {
    return gathered(2);
  }
  if (own.dim() == 4) {  // [1, heads or groups, S, D]
    const Tensor all = gathered(1);
    const int64_t heads =
        name.ends_with(".q") ? config.num_attention_heads : config.num_query_groups;
    // Where there are more ranks than groups, neighbours have the same one.
    return all.slice(1, 0, all.size(1), all.size(1) / heads);
  }
  return layout.sequence_axis && name != "logits" ? gathered(1) : own;
}

}  // namespace

std::map<std::string, Tensor> whole_activations(const std::map<std::string, Tensor>& own,
                                                const AllConfig& config) {
  const NoGradGuard guard;
  // Recorded values have the batch first in either data layout.
  const TensorParallelLayout tensor = tensor_parallel_layout(config.model_config, false);
  const ContextParallelLayout context = context_parallel_layout();
  std::map<std::string, Tensor> whole;
  for (const auto& [name, value] : own) {
    const Tensor tokens =
        tensor.size > 1 ? over_tensor_parallel(name, value, config.model_config, tensor) : value;
    whole.emplace(name, gather_chunks(tokens, tokens.dim() == 4 ? 2 : 1, context));
  }
  return whole;
}

}  // namespace tapestry
