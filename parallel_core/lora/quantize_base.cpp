#include "parallel_core/lora/quantize_base.h"

#include <string>

#include "autograd/ops/transformer/quantized_matrix.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/tensor_parallel/layers.h"

namespace tapestry {

namespace {

void quantize_weight(nn::Parameter& weight, const std::string& name, bool values_come_later) {
  constexpr int64_t kBlock = 32;
  if (weight.requires_grad() || weight.is_quantized()) {
    return;
  }
  check<ValueError>(weight.size(1) % kBlock == 0, name, ": ", weight.size(1),
                    " numbers of a row on this rank cannot be blocks of ", kBlock,
                    " (q8_0); choose another tensor_model_parallel_size, or leave the weights in a "
                    "floating dtype");
  weight.set_quantized(values_come_later ? QuantizedMatrix(weight.size(0), weight.size(1))
                                         : quantize_q8_0(weight.detach()));
}

}  // namespace

void quantize_base(nn::Module& model, const QuantizeBaseOptions& options) {
  const NoGradGuard guard;
  const MemoryKindGuard kind(MemoryKind::kParameter);
  const auto quantize = [&](nn::Parameter& weight, const std::string& name) {
    if (!options.takes || options.takes(weight)) {
      quantize_weight(weight, name, options.values_come_later);
    }
  };
  for (const nn::Module::NamedModule& entry : model.named_modules()) {
    const std::string name = entry.name + ".weight";
    if (const auto* column = dynamic_cast<const ColumnParallelLinear*>(entry.module)) {
      quantize(column->weight(), name);
    } else if (const auto* row = dynamic_cast<const RowParallelLinear*>(entry.module)) {
      quantize(row->weight(), name);
    }
  }
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    if (options.head && entry.parameter->flags().head) {
      quantize(*entry.parameter, entry.name);
    }
  }
}

}  // namespace tapestry
