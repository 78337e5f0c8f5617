#include "parallel_core/transformer/mixers/gated_delta_net.h"

#include "autograd/ops/map.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/ops/transformer/gated_norm.h"
#include "autograd/tensor/error.h"
#include "parallel_core/config/model_matrices.h"
#include "parallel_core/context_parallel/recurrence.h"
#include "parallel_core/transformer/activation_recorder.h"

namespace tapestry {

GatedDeltaNet::GatedDeltaNet(const TransformerConfig& config,
                             int64_t layer_number,
                             bool sequence_first)
    : layer_(layer_number - 1),
      sequence_first_(sequence_first),
      beta_scale_(config.linear_attention.allow_neg_eigval ? 2 : 1),
      norm_epsilon_(config.linear_attention.norm_epsilon.value_or(config.norm_epsilon)),
      precision_(precision_of(config)),
      context_layout_(context_parallel_layout()) {
  const TensorParallelLayout layout = tensor_parallel_layout(config, sequence_first);
  const MixerWidths all = mixer_widths(config, MixerKind::kGatedDelta);
  const int64_t key_heads = layout.share_of(all.key_heads, "key heads of linear_attention");
  const int64_t value_heads = key_heads * (all.value_heads / all.key_heads);
  heads_ = {.key_heads = key_heads,
            .value_heads = value_heads,
            .key_dim = all.key_channels,
            .value_dim = all.value_channels};
  total_values_ = all.values;
  first_value_ = layout.rank * value_heads * all.value_channels;
  const auto rows = [&](const char* name, int64_t heads, int64_t total_heads, int64_t channels) {
    return MixerRows{.name = name,
                     .total = total_heads * channels,
                     .first = layout.rank * heads * channels,
                     .own = heads * channels};
  };
  const auto keys = [&](const char* name) {
    return rows(name, key_heads, all.key_heads, all.key_channels);
  };
  const auto values = [&](const char* name, int64_t channels) {
    return rows(name, value_heads, all.value_heads, channels);
  };
  const int64_t channels = all.value_channels;
  const std::string prefix = concat("layers.", layer_, ".linear_attention.");
  in_proj_ = &register_module<ColumnParallelLinear>(
      "in_proj", mixer_input_spec(config, layout, prefix,
                                  {keys("wq"), keys("wk"), values("wv", channels),
                                   values("wz", channels), values("wb", 1), values("wa", 1)},
                                  /*has_bias=*/false, sequence_first));
  conv_ = &register_module<ConvolutionTaps>(
      "conv", prefix,
      std::vector<MixerRows>{keys("conv_q"), keys("conv_k"), values("conv_v", channels)}, all.taps,
      /*has_bias=*/false, layout);
  const auto add_numbers = [&](const char* name, InitMethod init) {
    const NewParameter made = mixer_numbers(prefix, values(name, 1), init, layout);
    nn::Parameter& parameter = register_parameter(name, made.value, made.flags);
    parameter.set_logical({made.logical});
    return &parameter;
  };
  // A state forgets between 1 % and all but e^-16 of itself at a step of 1.
  decay_ = add_numbers("A_log", {InitMethod::Kind::kLogUniform, 16});
  dt_bias_ = add_numbers("dt_bias", InitMethod::constant(1));
  const LogicalInit gain =
      whole(prefix + "norm.weight", {all.value_channels}, InitMethod::constant(1));
  gain_ = &register_parameter("norm", initial_value({all.value_channels}, {gain}),
                              {.decay = false, .tp = layout.head_gradient()});
  gain_->set_logical({gain.logical});
  out_proj_ = &register_module<RowParallelLinear>(
      "out_proj", mixer_output_spec(config, layout, prefix, values("wo", channels),
                                    /*has_bias=*/false, sequence_first));
}

std::string GatedDeltaNet::extra_repr() const {
  return concat("key_heads=", heads_.key_heads, ", value_heads=", heads_.value_heads,
                ", key_dim=", heads_.key_dim, ", value_dim=", heads_.value_dim);
}

// What heads give of whole sequences, [B, S, values].
Tensor GatedDeltaNet::mix(const Tensor& qkv,
                          const Tensor& b,
                          const Tensor& a,
                          const AttentionContext& context,
                          const LayerPass& pass) const {
  Tensor convolved;
  {
    const RecomputeScope scope = pass.of(LayerOp::kConvolution);
    convolved = conv_->forward(qkv, /*silu=*/true, context, context_layout_);
  }
  report_if_recorded([&] {
    pass_activation(layer_value(layer_, "linear_attention.convolved"), convolved,
                    {whole_axis(), token_axis(context_layout_.positions(convolved.size(1))),
                     conv_->channels_axis()});
  });
  const RecomputeScope scope = pass.of(LayerOp::kRecurrence);
  const GatedDeltaGates gates = gated_delta_gates(a, b, *decay_, *dt_bias_, beta_scale_);
  const int64_t batch = qkv.size(0);
  const auto recur = [&](const TokenRun& run, const Tensor& state, bool wants_state) {
    GatedDeltaOptions options = heads_;
    options.document_starts = context.document_starts;
    options.first_position = run.first;
    options.initial_state = state;
    options.wants_final_state = wants_state;
    const auto part = [&](const Tensor& t) {
      return run.end - run.begin == t.size(1) ? t : t.slice(1, run.begin, run.end);
    };
    const GatedDeltaResult result =
        gated_delta_rule(part(convolved), part(gates.g), part(gates.beta), options);
    return StateResult{.out = result.out, .state = result.final_state};
  };
  const Tensor mixed = context_parallel_recurrence(
      convolved, qkv.size(1), {batch, heads_.value_heads, heads_.key_dim, heads_.value_dim},
      context_layout_, recur);
  return mixed.view({batch, qkv.size(1), heads_.value_heads * heads_.value_dim});
}

// The same of new tokens [1, N, ..] of texts whose states are in the step's cache.
Tensor GatedDeltaNet::mix_cached(const Tensor& projected, const CachedStep& cached) const {
  const int64_t channels = conv_->channels();
  const int64_t value_heads = heads_.value_heads;
  const int64_t width = value_heads * heads_.value_dim;
  const LayerStates& states =
      cached.cache->states(layer_, {.state = {value_heads, heads_.key_dim, heads_.value_dim},
                                    .inputs = conv_->taps() - 1,
                                    .channels = channels,
                                    .dtype = projected.dtype()});
  // qkv | z | b | a
  const auto gates_of = [&](const Tensor& rows) {
    const int64_t b = channels + width;
    return gated_delta_gates(rows.slice(-1, b + value_heads, b + 2 * value_heads),
                             rows.slice(-1, b, b + value_heads), *decay_, *dt_bias_, beta_scale_);
  };
  return cached_rows(
      projected, width, cached, states,
      [&](const Tensor& rows, const std::vector<int64_t>& slots) {
        const Tensor convolved = conv_->step(rows.slice(1, 0, channels), true, states, slots);
        const GatedDeltaGates gates = gates_of(rows);
        return gated_delta_step(convolved, gates.g, gates.beta, states.state, slots, heads_);
      },
      [&](const Tensor& rows, int64_t slot) {
        const Tensor convolved = conv_->continued(rows.slice(2, 0, channels), true, states, slot);
        const GatedDeltaGates gates = gates_of(rows);
        GatedDeltaOptions options = heads_;
        options.initial_state = states.state.slice(0, slot, slot + 1);
        options.wants_final_state = true;
        const GatedDeltaResult result = gated_delta_rule(convolved, gates.g, gates.beta, options);
        copy_values(result.final_state, options.initial_state);
        return result.out;
      });
}

OutputAndBias GatedDeltaNet::forward(const Tensor& x,
                                     const AttentionContext& context,
                                     const LayerPass& pass) {
  check_no_mask(context, "linear_attention");
  const int64_t channels = conv_->channels();
  const int64_t width = heads_.value_heads * heads_.value_dim;
  Tensor projected;  // [B, S, ..]
  TensorList parts;
  {
    const RecomputeScope scope = pass.of(LayerOp::kQkv);
    projected = (*in_proj_)(x, pass.keeps_gathered(LayerOp::kInputNorm)).output;
    if (sequence_first_) {
      projected = projected.transpose(0, 1);
    }
    parts = split(projected, Shape{channels, width, heads_.value_heads, heads_.value_heads}, 2);
  }
  Tensor mixed = context.cached == nullptr ? mix(parts[0], parts[2], parts[3], context, pass)
                                           : mix_cached(projected, *context.cached);
  report_if_recorded([&] {
    if (context.cached == nullptr) {
      pass_activation(layer_value(layer_, "linear_attention.context"), mixed,
                      {whole_axis(), token_axis(context_layout_.positions(mixed.size(1))),
                       sliced_axis(first_value_, width, total_values_)});
    }
  });
  Tensor normed;
  {
    const RecomputeScope scope = pass.of(LayerOp::kMixerNorm);
    normed = gated_rms_norm(mixed, parts[1], *gain_,
                            {.eps = norm_epsilon_, .group_size = heads_.value_dim});
    if (sequence_first_) {
      normed = normed.transpose(0, 1);
    }
  }
  const RecomputeScope scope = pass.of(LayerOp::kOutProj);
  return (*out_proj_)(normed);
}

}  // namespace tapestry
