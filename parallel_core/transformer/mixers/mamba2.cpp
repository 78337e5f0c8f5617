#include "parallel_core/transformer/mixers/mamba2.h"

#include "autograd/ops/elementwise.h"
#include "autograd/ops/map.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/ops/transformer/gated_norm.h"
#include "autograd/tensor/error.h"
#include "parallel_core/config/model_matrices.h"
#include "parallel_core/context_parallel/recurrence.h"
#include "parallel_core/tensor_parallel/mappings.h"

namespace tapestry {

Mamba2::Mamba2(const TransformerConfig& config, int64_t layer_number, bool sequence_first)
    : layer_(layer_number - 1),
      sequence_first_(sequence_first),
      norm_epsilon_(config.norm_epsilon),
      layout_(tensor_parallel_layout(config, sequence_first)),
      context_layout_(context_parallel_layout()) {
  const MambaConfig& mamba = config.mamba;
  const MixerWidths all = mixer_widths(config, MixerKind::kMamba);
  const int64_t heads = layout_.share_of(all.value_heads, "heads of mamba");
  const bool one_group = mamba.num_groups == 1;
  const int64_t groups =
      one_group
          ? 1
          : layout_.share_of(mamba.num_groups,
                             "groups of mamba (ranks share a group where it is the only one)");
  norm_is_divided_ = one_group && layout_.size > 1;
  const int64_t dim = all.value_channels;
  sizes_ = {.heads = heads, .head_dim = dim, .groups = groups, .state_size = all.key_channels};
  if (mamba.time_step_limit) {
    sizes_.step_min = mamba.time_step_limit->front();
    sizes_.step_max = mamba.time_step_limit->back();
  }
  total_heads_ = all.value_heads;
  first_head_ = layout_.rank * heads;
  const auto of_heads = [&](const char* name, int64_t channels) {
    return MixerRows{.name = name,
                     .total = total_heads_ * channels,
                     .first = first_head_ * channels,
                     .own = heads * channels};
  };
  const auto of_groups = [&](const char* name) {
    const int64_t rows = groups * all.key_channels;
    return MixerRows{.name = name,
                     .total = all.keys,
                     .first = one_group ? 0 : layout_.rank * rows,
                     .own = rows,
                     .copies = one_group ? layout_.size : 1};
  };
  const std::string prefix = concat("layers.", layer_, ".mamba.");
  in_proj_ = &register_module<ColumnParallelLinear>(
      "in_proj", mixer_input_spec(config, layout_, prefix,
                                  {of_heads("wz", dim), of_heads("wx", dim), of_groups("wB"),
                                   of_groups("wC"), of_heads("wdt", 1)},
                                  mamba.proj_has_bias, sequence_first));
  conv_ = &register_module<ConvolutionTaps>(
      "conv", prefix,
      std::vector<MixerRows>{of_heads("conv_x", dim), of_groups("conv_B"), of_groups("conv_C")},
      all.taps, mamba.conv_has_bias, layout_);
  const auto add_numbers = [&](const char* name, const MixerRows& rows, InitMethod init) {
    const NewParameter made = mixer_numbers(prefix, rows, init, layout_);
    nn::Parameter& parameter = register_parameter(name, made.value, made.flags);
    parameter.set_logical({made.logical});
    return &parameter;
  };
  decay_ = add_numbers("A_log", of_heads("A_log", 1), {InitMethod::Kind::kLogCount, 0});
  skip_ = add_numbers("D", of_heads("D", 1), InitMethod::constant(1));
  dt_bias_ = add_numbers("dt_bias", of_heads("dt_bias", 1), InitMethod::constant(1));
  gain_ = add_numbers("norm", of_heads("norm", dim), InitMethod::constant(1));
  out_proj_ = &register_module<RowParallelLinear>(
      "out_proj", mixer_output_spec(config, layout_, prefix, of_heads("wo", dim),
                                    mamba.proj_has_bias, sequence_first));
}

std::string Mamba2::extra_repr() const {
  return concat("heads=", sizes_.heads, ", dim=", sizes_.head_dim, ", groups=", sizes_.groups,
                ", state=", sizes_.state_size);
}

// What heads give of whole sequences, [B, S, heads * dim].
Tensor Mamba2::mix(const Tensor& xbc,
                   const Tensor& dt,
                   const AttentionContext& context,
                   const LayerPass& pass) const {
  Tensor convolved;
  {
    const RecomputeScope scope = pass.of(LayerOp::kConvolution);
    convolved = conv_->forward(xbc, /*silu=*/true, context, context_layout_);
  }
  report_if_recorded([&] {
    pass_activation(layer_value(layer_, "mamba.convolved"), convolved,
                    {whole_axis(), token_axis(context_layout_.positions(convolved.size(1))),
                     conv_->channels_axis()});
  });
  const RecomputeScope scope = pass.of(LayerOp::kRecurrence);
  const auto recur = [&](const TokenRun& run, const Tensor& state, bool wants_state) {
    StateSpaceOptions options = sizes_;
    options.document_starts = context.document_starts;
    options.position_offset = run.first;
    options.initial_state = state;
    options.want_final_state = wants_state;
    const auto part = [&](const Tensor& t) {
      return run.end - run.begin == t.size(1) ? t : t.slice(1, run.begin, run.end);
    };
    const StateSpaceResult result =
        state_space(part(convolved), part(dt), *decay_, *skip_, *dt_bias_, options);
    return StateResult{.out = result.y, .state = result.final_state};
  };
  return context_parallel_recurrence(
      convolved, xbc.size(1), {xbc.size(0), sizes_.heads, sizes_.head_dim, sizes_.state_size},
      context_layout_, recur);
}

// The same of new tokens [1, N, ..] of texts whose states are in the step's cache.
Tensor Mamba2::mix_cached(const Tensor& projected, const CachedStep& cached) const {
  const int64_t channels = conv_->channels();
  const int64_t width = sizes_.heads * sizes_.head_dim;
  const LayerStates& states =
      cached.cache->states(layer_, {.state = {sizes_.heads, sizes_.head_dim, sizes_.state_size},
                                    .inputs = conv_->taps() - 1,
                                    .channels = channels,
                                    .dtype = projected.dtype()});
  // z | x, B, C | dt
  const auto xbc = [&](const Tensor& rows) { return rows.slice(-1, width, width + channels); };
  const auto dt = [&](const Tensor& rows) {
    return rows.slice(-1, width + channels, width + channels + sizes_.heads);
  };
  return cached_rows(
      projected, width, cached, states,
      [&](const Tensor& rows, const std::vector<int64_t>& slots) {
        return state_space_step(conv_->step(xbc(rows), true, states, slots), dt(rows), *decay_,
                                *skip_, *dt_bias_, sizes_, states.state, slots);
      },
      [&](const Tensor& rows, int64_t slot) {
        StateSpaceOptions options = sizes_;
        options.initial_state = states.state.slice(0, slot, slot + 1);
        options.want_final_state = true;
        const StateSpaceResult result = state_space(conv_->continued(xbc(rows), true, states, slot),
                                                    dt(rows), *decay_, *skip_, *dt_bias_, options);
        copy_values(result.final_state, options.initial_state);
        return result.y;
      });
}

// Gated, then normed over each group, whose channels several ranks may share.
Tensor Mamba2::normalize(const Tensor& y, const Tensor& z) const {
  const int64_t group = sizes_.heads / sizes_.groups * sizes_.head_dim;
  GatedNormOptions options = {
      .eps = norm_epsilon_, .group_size = group, .order = GatedNormOrder::kGateThenNorm};
  if (norm_is_divided_) {
    const Tensor sums = copy_to_model_parallel_region(
        reduce_from_model_parallel_region(gated_sum_of_squares(y, z, options), *layout_.group),
        *layout_.group);
    options.mean_squares = sums / static_cast<double>(group * layout_.size);
  }
  return gated_rms_norm(y, z, *gain_, options);
}

OutputAndBias Mamba2::forward(const Tensor& x,
                              const AttentionContext& context,
                              const LayerPass& pass) {
  check_no_mask(context, "mamba");
  const int64_t width = sizes_.heads * sizes_.head_dim;
  Tensor projected;  // [B, S, ..]
  TensorList parts;
  {
    const RecomputeScope scope = pass.of(LayerOp::kQkv);
    projected = (*in_proj_)(x, pass.keeps_gathered(LayerOp::kInputNorm)).output;
    if (sequence_first_) {
      projected = projected.transpose(0, 1);
    }
    parts = split(projected, Shape{width, conv_->channels(), sizes_.heads}, 2);
  }
  Tensor mixed = context.cached == nullptr ? mix(parts[1], parts[2], context, pass)
                                           : mix_cached(projected, *context.cached);
  report_if_recorded([&] {
    if (context.cached == nullptr) {
      pass_activation(
          layer_value(layer_, "mamba.context"), mixed,
          {whole_axis(), token_axis(context_layout_.positions(mixed.size(1))),
           sliced_axis(first_head_ * sizes_.head_dim, width, total_heads_ * sizes_.head_dim)});
    }
  });
  Tensor normed;
  {
    const RecomputeScope scope = pass.of(LayerOp::kMixerNorm);
    normed = normalize(mixed, parts[0]);
    if (sequence_first_) {
      normed = normed.transpose(0, 1);
    }
  }
  const RecomputeScope scope = pass.of(LayerOp::kOutProj);
  return (*out_proj_)(normed);
}

}  // namespace tapestry
