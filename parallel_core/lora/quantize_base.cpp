#include "parallel_core/lora/quantize_base.h"

#include <string>

#include "autograd/ops/transformer/quantized_matrix.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/deferred_values.h"
#include "parallel_core/tensor_parallel/layers.h"

namespace tapestry {

namespace {

void quantize_weight(nn::Parameter& weight,
                     const std::string& name,
                     BlockFormat format,
                     bool values_come_later) {
  if (weight.requires_grad() || weight.is_quantized()) {
    return;
  }
  const int64_t in = weight.shape().back();
  const bool of_expert = weight.flags().expert;
  check<ValueError>(in % kernels::kBlockNumbers == 0, name, ": ", in,
                    " numbers of a row on this rank cannot be blocks of ", kernels::kBlockNumbers,
                    " (", name_of(format), "); choose another ",
                    of_expert ? "expert_tensor_parallel_size" : "tensor_model_parallel_size",
                    ", or leave the weights in a floating dtype");
  const QuantizedMatrix matrix(weight.numel() / in, in, format);
  if (!values_come_later) {
    for_start_values(weight.detach(), in, [&](int64_t first, const Tensor& values) {
      quantize_into(values.view({-1, in}), matrix, first / in);
    });
  }
  weight.set_quantized(matrix);
}

bool is_of_experts(const nn::ParameterFlags& flags) {
  return flags.expert && flags.matmul && !flags.adapter;
}

}  // namespace

void quantize_base(nn::Module& model, const QuantizeBaseOptions& options) {
  const NoGradGuard guard;
  const MemoryKindGuard kind(MemoryKind::kParameter);
  const auto quantize = [&](nn::Parameter& weight, const std::string& name) {
    const std::optional<BlockFormat> format =
        options.format_of ? options.format_of(weight) : std::optional(options.format);
    if (format) {
      quantize_weight(weight, name, *format, options.values_come_later);
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
    const nn::ParameterFlags& flags = entry.parameter->flags();
    if (is_of_experts(flags) || (options.head && flags.head)) {
      quantize(*entry.parameter, entry.name);
    }
  }
}

}  // namespace tapestry
