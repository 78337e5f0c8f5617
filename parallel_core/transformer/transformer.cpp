#include "parallel_core/transformer/transformer.h"

#include <algorithm>

#include "autograd/ops/map.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/transformer/activation_recorder.h"
#include "parallel_core/transformer/moe/moe_layer.h"

namespace tapestry {

namespace {

class LayerList final : public nn::Module {
 public:
  std::string type_name() const override { return "ModuleList"; }
  ParallelTransformerLayer& append(const TransformerConfig& config,
                                   int64_t index,
                                   bool sequence_first) {
    return register_module<ParallelTransformerLayer>(std::to_string(index), config, index + 1,
                                                     sequence_first);
  }
};

}  // namespace

ParallelTransformerLayer::ParallelTransformerLayer(const TransformerConfig& config,
                                                   int64_t layer_number,
                                                   bool sequence_first)
    : layer_(layer_number - 1),
      batch_axis_(sequence_first ? 1 : 0),
      dropout_(config.hidden_dropout),
      residual_from_norm_(config.apply_residual_connection_post_norm),
      precision_(precision_of(config)),
      layout_(tensor_parallel_layout(config, sequence_first)),
      context_layout_(context_parallel_layout()) {
  if (!config.layer_recompute.empty()) {
    recompute_ = recompute_policy(config.layer_recompute.at(static_cast<size_t>(layer_)),
                                  layer_op_names(config));
  }
  const std::string prefix = "layers." + std::to_string(layer_) + ".";
  const auto add_norm = [&](const char* name, const char* logical, double scale = 1.0) {
    return static_cast<ParallelNorm*>(&add_child(
        name,
        get_norm(config, config.hidden_size, prefix + logical, layout_.hidden_gradient(), scale)));
  };
  input_norm_ = add_norm("input_norm", "attention_norm");
  attention_ =
      &register_module<ParallelAttention>("attention", config, layer_number, sequence_first);
  if (config.use_sandwich_norm) {
    attn_post_norm_ =
        add_norm("attn_post_norm", "attention_post_norm", config.attn_post_norm_scale);
  }
  post_attention_norm_ = add_norm("post_attention_norm", "ffn_norm");
  if (is_moe_layer(config, layer_)) {
    mlp_ = &register_module<MoELayer>("mlp", config, layer_number, sequence_first);
  } else {
    mlp_ = &register_module<ParallelMLP>("mlp", config, layer_number, sequence_first);
  }
  if (config.use_sandwich_norm) {
    ffn_post_norm_ = add_norm("ffn_post_norm", "ffn_post_norm", config.ffn_post_norm_scale);
  }
}

AddNorm ParallelTransformerLayer::normalize(const ResidualStream& stream,
                                            ParallelNorm& norm,
                                            LayerOp norm_op,
                                            bool adds_again,
                                            const LayerPass& pass) const {
  RecomputedValues* const values = pass.values();
  if (values == nullptr) {
    return stream.normalize(norm);
  }
  AddNorm out;
  if (!stream.pending.output.defined() || !norm.adds_in_one_pass(stream.value)) {
    {
      const RecomputeScope scope(adds_again ? values : nullptr);
      out.sum = stream.sum(precision_);
    }
    const RecomputeScope scope = pass.of(norm_op);
    out.normed = norm(out.sum);
    return out;
  }
  const RecomputeScope scope(adds_again ? values : nullptr);
  out = norm.add(stream.pending, stream.value);
  if (adds_again && !pass.policy()->recomputes(norm_op)) {
    values->keep(out.normed);
  } else if (!adds_again && pass.policy()->recomputes(norm_op)) {
    // From the sum, which has the same bits whoever has added it.
    values->add(out.normed, [&norm, sum = alias(out.sum)] { return norm.forward(sum); });
  }
  return out;
}

// Keeps the rank's share of what all tensor-parallel ranks have.
void ParallelTransformerLayer::slice_input(const Tensor& input, const LayerPass& pass) const {
  const bool whole_storage = input.is_contiguous() && input.offset() == 0 &&
                             input.storage()->bytes() == input.numel() * size_of(input.dtype());
  if (layout_.size == 1 || layout_.sequence_axis || !whole_storage) {
    return;
  }
  const NoGradGuard guard;
  const int64_t size = input.numel();
  const int64_t share = (size + layout_.size - 1) / layout_.size;
  const int64_t first = std::min(size, layout_.rank * share);
  const Tensor own = zeros({share}, input.dtype());
  const int64_t count = std::min(share, size - first);
  copy_values(alias(input, {count}, {1}, first), alias(own, {count}, {1}, 0));
  pass.values()->add(input, [own, shape = input.shape(), size, group = layout_.group] {
    const Tensor all = empty({group->size() * own.numel()}, own.dtype());
    group->all_gather(all, own);
    Tensor out = empty(shape, own.dtype());
    copy_values(alias(all, {size}, {1}, 0), alias(out, {size}, {1}, 0));
    return out;
  });
}

OutputAndBias ParallelTransformerLayer::finish(const OutputAndBias& block,
                                               LayerOp block_op,
                                               DropoutSite site,
                                               ParallelNorm* post_norm,
                                               LayerOp post_norm_op,
                                               const LayerPass& pass) const {
  const bool drops = is_training() && dropout_ > 0;
  if (!drops && post_norm == nullptr) {
    return block;
  }
  Tensor out;
  {
    const RecomputeScope scope = pass.of(block_op);
    out = add_bias(block.output, block.bias);
    if (drops) {
      out = hidden_dropout(out, dropout_, layer_, site, batch_axis_,
                           hidden_positions(context_layout_, layout_, out.size(1 - batch_axis_)));
    }
  }
  if (post_norm != nullptr) {
    const RecomputeScope scope = pass.of(post_norm_op);
    out = (*post_norm)(out);
  }
  return {out, {}};
}

ResidualStream ParallelTransformerLayer::forward(const ResidualStream& stream,
                                                 const AttentionContext& context) {
  const auto axes_of = [&](const Tensor& value) {
    return hidden_axes(value, batch_axis_, context_layout_, layout_);
  };
  const auto pass_on = [&](const char* name, Tensor& value) {
    report_if_recorded(
        [&] { pass_activation(layer_value(layer_, name), value, axes_of(value), batch_axis_); });
  };
  // A block's result, and what becomes of it by adding. Both are made only to be shown, as the next
  // norm adds; but a sum that another takes the place of is made here.
  const auto pass_sum = [&](const char* block, const char* name, ResidualStream& out) {
    report_if_recorded([&] {
      const OutputAndBias made = out.pending;
      const Tensor shown = shown_only([&] { return add_bias(made.output, made.bias); });
      const Tensor total = shown_only([&] { return out.sum(precision_); });
      Tensor with_gradient = made.output;
      if (activations_are_replaced()) {
        Tensor sum = [&] {
          const UnobservedScope unobserved;
          return out.sum(precision_);
        }();
        if (replace_activation(layer_value(layer_, name), sum, axes_of(sum), batch_axis_)) {
          out.value = with_gradient = sum;
          out.pending = {};
        }
      }
      report_activation(layer_value(layer_, block), shown, axes_of(shown), batch_axis_,
                        with_gradient);
      report_activation(layer_value(layer_, name), total, axes_of(total), batch_axis_);
    });
  };
  const auto values = recompute_ && grad_enabled() ? std::make_shared<RecomputedValues>() : nullptr;
  const LayerPass pass = values != nullptr ? LayerPass(*recompute_, *values) : LayerPass();
  const bool full = values != nullptr && recompute_->full;
  if (full) {
    values->set_repeats_communication(recompute_->repeats_communication);
  }
  AddNorm before =
      normalize(stream, *input_norm_, LayerOp::kInputNorm, full && !recompute_->keeps_input, pass);
  stream.release();
  if (full && recompute_->slices_input && recompute_->keeps_input) {
    slice_input(before.sum, pass);
  }
  const RecomputeScope scope = pass.rest();
  pass_on("attention_norm", before.normed);
  const OutputAndBias attended =
      finish((*attention_)(before.normed, context, pass), LayerOp::kOutProj,
             DropoutSite::kAttentionOutput, attn_post_norm_, LayerOp::kAttentionPostNorm, pass);
  ResidualStream middle = {residual_from_norm_ ? before.normed : before.sum, attended};
  pass_sum("attention", "attention_residual", middle);
  AddNorm between = normalize(middle, *post_attention_norm_, LayerOp::kPostAttentionNorm,
                              values != nullptr && recompute_->recomputes(LayerOp::kAdd), pass);
  pass_on("ffn_norm", between.normed);
  const OutputAndBias fed =
      finish((*mlp_)(between.normed, pass), LayerOp::kProjection, DropoutSite::kMlpOutput,
             ffn_post_norm_, LayerOp::kFfnPostNorm, pass);
  ResidualStream out = {residual_from_norm_ ? between.normed : between.sum, fed, values};
  pass_sum("mlp", "output", out);
  return out;
}

ParallelTransformer::ParallelTransformer(const TransformerConfig& config,
                                         bool sequence_first,
                                         const PipelineStage& stage)
    : post_process_(stage.post_process()),
      batch_axis_(sequence_first ? 1 : 0),
      precision_(precision_of(config)),
      layout_(tensor_parallel_layout(config, sequence_first)) {
  auto& list = register_module<LayerList>("layers");
  for (const LayerRange& range : stage.chunks) {
    auto& layers = chunks_.emplace_back();
    for (int64_t i = range.first; i < range.first + range.count; ++i) {
      layers.push_back(&list.append(config, i, sequence_first));
    }
  }
  if (config.use_final_norm && post_process_) {
    final_norm_ = static_cast<ParallelNorm*>(
        &add_child("final_norm",
                   get_norm(config, config.hidden_size, "final_norm", layout_.hidden_gradient())));
  }
}

Tensor ParallelTransformer::forward(const Tensor& hidden,
                                    const AttentionContext& context,
                                    int chunk) {
  ResidualStream stream = {hidden};
  for (ParallelTransformerLayer* layer : chunks_.at(static_cast<size_t>(chunk))) {
    stream = (*layer)(stream, context);
  }
  Tensor out;
  if (!post_process_ || chunk + 1 < static_cast<int>(chunks_.size())) {
    out = stream.sum(precision_);
  } else if (final_norm_ == nullptr) {
    out = stream.sum(precision_).to(precision_.activation);
  } else {
    out = stream.normalize(*final_norm_).normed;
    report_if_recorded([&] {
      pass_activation("final_norm", out,
                      hidden_axes(out, batch_axis_, context_parallel_layout(), layout_),
                      batch_axis_);
    });
  }
  stream.release();
  return out;
}

}  // namespace tapestry
