#include "parallel_core/transformer/mixers/gated_short_conv.h"

#include "autograd/ops/elementwise.h"
#include "autograd/ops/shape_ops.h"
#include "parallel_core/config/model_matrices.h"

namespace tapestry {

GatedShortConv::GatedShortConv(const TransformerConfig& config,
                               int64_t layer_number,
                               bool sequence_first)
    : layer_(layer_number - 1),
      sequence_first_(sequence_first),
      context_layout_(context_parallel_layout()) {
  const TensorParallelLayout layout = tensor_parallel_layout(config, sequence_first);
  const MixerWidths all = mixer_widths(config, MixerKind::kShortConv);
  const int64_t own = layout.share_of(all.values, "channels of conv");
  first_channel_ = layout.rank * own;
  total_channels_ = all.values;
  const auto rows = [&](const char* name) {
    return MixerRows{.name = name, .total = total_channels_, .first = first_channel_, .own = own};
  };
  const bool bias = config.short_conv.has_bias;
  const std::string prefix = concat("layers.", layer_, ".short_conv.");
  in_proj_ = &register_module<ColumnParallelLinear>(
      "in_proj", mixer_input_spec(config, layout, prefix, {rows("wb"), rows("wc"), rows("wx")},
                                  bias, sequence_first));
  conv_ = &register_module<ConvolutionTaps>("conv", prefix, std::vector<MixerRows>{rows("conv")},
                                            all.taps, bias, layout);
  out_proj_ = &register_module<RowParallelLinear>(
      "out_proj", mixer_output_spec(config, layout, prefix, rows("wo"), bias, sequence_first));
}

Tensor GatedShortConv::convolve(const Tensor& x, const AttentionContext& context) const {
  if (context.cached == nullptr) {
    return conv_->forward(x, /*silu=*/false, context, context_layout_);
  }
  const LayerStates& states = context.cached->cache->states(layer_, {.state = {},
                                                                     .inputs = conv_->taps() - 1,
                                                                     .channels = conv_->channels(),
                                                                     .dtype = x.dtype()});
  return cached_rows(
      x, conv_->channels(), *context.cached, states,
      [&](const Tensor& rows, const std::vector<int64_t>& slots) {
        return conv_->step(rows, false, states, slots);
      },
      [&](const Tensor& rows, int64_t slot) {
        return conv_->continued(rows, false, states, slot);
      });
}

OutputAndBias GatedShortConv::forward(const Tensor& x,
                                      const AttentionContext& context,
                                      const LayerPass& pass) {
  check_no_mask(context, "conv");
  TensorList parts;  // [B, S, channels]: b, c, x
  {
    const RecomputeScope scope = pass.of(LayerOp::kQkv);
    const Tensor projected = (*in_proj_)(x, pass.keeps_gathered(LayerOp::kInputNorm)).output;
    const int64_t own = conv_->channels();
    parts = split(sequence_first_ ? projected.transpose(0, 1) : projected, Shape{own, own, own}, 2);
  }
  Tensor mixed;
  {
    const RecomputeScope scope = pass.of(LayerOp::kConvolution);
    mixed = parts[1] * convolve(parts[0] * parts[2], context);
  }
  report_if_recorded([&] {
    if (context.cached == nullptr) {
      pass_activation(layer_value(layer_, "short_conv.context"), mixed,
                      {whole_axis(), token_axis(context_layout_.positions(mixed.size(1))),
                       sliced_axis(first_channel_, mixed.size(2), total_channels_)});
    }
  });
  const RecomputeScope scope = pass.of(LayerOp::kOutProj);
  return (*out_proj_)(sequence_first_ ? mixed.transpose(0, 1) : mixed);
}

}  // namespace tapestry
