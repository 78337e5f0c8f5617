#include "parallel_core/transformer/transformer_model.h"

#include <algorithm>
#include <span>
#include <utility>

#include "autograd/kernels/machine/exact.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/map.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tape/recompute.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/comm/sum_over.h"
#include "parallel_core/config/model_matrices.h"
#include "parallel_core/tensor_parallel/mappings.h"

namespace tapestry {

TransformerModel::TransformerModel(const AllConfig& config)
    : TransformerModel(
          config.model_config, config.dataset_config.data_layout, get_pipeline_stage(config)) {}

TransformerModel::TransformerModel(const TransformerConfig& config,
                                   const std::string& data_layout,
                                   PipelineStage stage)
    : stage_(std::move(stage)),
      hidden_width_(residual_streams(config) * config.hidden_size +
                    config.num_layers * config.per_layer_embedding_size),
      sequence_first_(data_layout == "SBH"),
      tensor_layout_(tensor_parallel_layout(config, sequence_first_)),
      context_layout_(context_parallel_layout()),
      precision_(precision_of(config)) {
  check<ValueError>(data_layout == "BSH" || data_layout == "SBH", "data_layout '", data_layout,
                    "' is not known; choose BSH or SBH");
  for (const LayerRecompute& layer : config.layer_recompute) {
    is_recomputed_.push_back(layer.full);
  }
}

Tensor TransformerModel::run_layer(int64_t i, const std::function<Tensor()>& forward) const {
  if (!grad_enabled() || is_recomputed_.empty() || !is_recomputed_.at(static_cast<size_t>(i))) {
    return forward();
  }
  RecomputedValues values;
  Tensor out;
  {
    const RecomputeScope scope(&values);
    out = forward();
  }
  values.keep(out);
  values.drop();
  return out;
}

int64_t TransformerModel::sequence_unit() const {
  const int64_t pieces = tensor_layout_.sequence_axis ? tensor_layout_.size : 1;
  return context_layout_.size == 1 ? pieces : context_layout_.chunks() * pieces;
}

Shape TransformerModel::hidden_shape(int64_t batch, int64_t seq) const {
  const int64_t unit = sequence_unit();
  const int64_t pieces = tensor_layout_.sequence_axis ? tensor_layout_.size : 1;
  const int64_t own = (seq + unit - 1) / unit * unit / context_layout_.size / pieces;
  return sequence_first_ ? Shape{own, batch, hidden_width_} : Shape{batch, own, hidden_width_};
}

Tensor TransformerModel::in_layout(const Tensor& batch_first) const {
  return sequence_first_ && batch_first.defined() ? batch_first.transpose(0, 1).contiguous()
                                                  : batch_first;
}

void TransformerModel::check_targets(const ModelInput& input) {
  for (const auto& [name, tensor] :
       {std::pair{"labels", input.labels}, std::pair{"loss_mask", input.loss_mask}}) {
    check<ValueError>(!tensor.defined() || tensor.shape() == input.tokens.shape(), "model: ", name,
                      " is ", describe(tensor), ", tokens ", describe(input.tokens));
  }
}

ModelOutput TransformerModel::mean_loss(const Tensor& losses, const ModelInput& input) const {
  check_targets(input);
  if (in_exact()) {
    return exact_loss(tapestry::sum(losses * token_weights(input)), losses, input);
  }
  const Tensor mask = in_layout(input.loss_mask);
  return mean_of_sum(tapestry::sum(mask.defined() ? losses * mask : losses), input);
}

Tensor TransformerModel::token_weights(const ModelInput& input) const {
  const Tensor mask = in_layout(input.loss_mask);
  return mask.defined() ? mask.to(kFloat32) * static_cast<double>(input.token_weight)
                        : full(in_layout(input.tokens).shape(), input.token_weight, kFloat32);
}

ModelOutput TransformerModel::exact_loss(const Tensor& weighted,
                                         const Tensor& losses,
                                         const ModelInput& input) const {
  const NoGradGuard guard;
  const Tensor mask = in_layout(input.loss_mask);
  const Tensor counted =
      dense(mask.defined() ? losses.detach() * mask.to(kFloat32) : losses.detach());
  ModelOutput out;
  out.loss = weighted;
  out.token_count = mask.defined() ? tapestry::sum(mask.to(kFloat64)).item()
                                   : static_cast<double>(input.tokens.numel());
  if (context_layout_.size > 1) {
    out.token_count = sum_over(*context_layout_.group, out.token_count);
  }
  out.exact_loss.emplace().add(
      std::span(counted.data<float>(), static_cast<size_t>(counted.numel())));
  return out;
}

ModelOutput TransformerModel::mean_of_sum(const Tensor& sum, const ModelInput& input) const {
  ModelOutput out;
  out.token_count = input.loss_mask.defined()
                        ? tapestry::sum(in_layout(input.loss_mask).to(kFloat64)).item()
                        : static_cast<double>(input.tokens.numel());
  Tensor total = sum;
  if (context_layout_.size > 1) {
    // Every rank goes backward from the loss of its own tokens.
    out.token_count = sum_over(*context_layout_.group, out.token_count);
    total = reduce_from_model_parallel_region(total, *context_layout_.group);
  }
  out.loss = out.token_count > 0 ? total / out.token_count : total;
  return out;
}

}  // namespace tapestry
