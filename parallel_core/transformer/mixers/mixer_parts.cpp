#include "parallel_core/transformer/mixers/mixer_parts.h"

#include <algorithm>
#include <cmath>

#include "autograd/ops/map.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/ops/transformer/short_convolution.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/context_parallel/recurrence.h"
#include "parallel_core/init_method.h"
#include "parallel_core/lora/low_rank_spec.h"

namespace tapestry {

namespace {

// The rank's part of `shape`, whose first axis is the rows', as rows [at, at + own) of a parameter
// that has `all` of them.
LogicalInit placed(const std::string& name,
                   Shape shape,
                   const MixerRows& rows,
                   InitMethod init,
                   int64_t at,
                   int64_t all) {
  LogicalInit out = sliced(name, shape, 0, rows.first, rows.own, init);
  out.logical.view_shape[0] = all;
  out.logical.begin = at;
  out.logical.end = at + rows.own;
  out.logical.copies = rows.copies;
  return out;
}

int64_t total_of(const std::vector<MixerRows>& parts) {
  int64_t sum = 0;
  for (const MixerRows& part : parts) {
    sum += part.own;
  }
  return sum;
}

}  // namespace

ParallelLinearSpec mixer_input_spec(const TransformerConfig& config,
                                    const TensorParallelLayout& layout,
                                    const std::string& prefix,
                                    const std::vector<MixerRows>& rows,
                                    bool has_bias,
                                    bool sequence_first) {
  const int64_t hidden = config.hidden_size;
  ParallelLinearSpec spec{.input_size = hidden,
                          .output_size = total_of(rows),
                          .precision = precision_of(config),
                          .layout = layout};
  int64_t at = 0;
  for (const MixerRows& part : rows) {
    const std::string name = prefix + part.name;
    spec.weight.push_back(placed(name + ".weight", {part.total, hidden}, part, weight_init(config),
                                 at, spec.output_size));
    if (has_bias) {
      spec.bias.push_back(
          placed(name + ".bias", {part.total}, part, bias_init(config), at, spec.output_size));
    }
    at += part.own;
  }
  return with_adapters(spec, config, DividedSide::kRows, sequence_first);
}

ParallelLinearSpec mixer_output_spec(const TransformerConfig& config,
                                     const TensorParallelLayout& layout,
                                     const std::string& prefix,
                                     const MixerRows& columns,
                                     bool has_bias,
                                     bool sequence_first) {
  const int64_t hidden = config.hidden_size;
  ParallelLinearSpec spec{
      .input_size = columns.own,
      .output_size = hidden,
      .weight = {sliced(prefix + columns.name + ".weight", {hidden, columns.total}, 1,
                        columns.first, columns.own, output_weight_init(config))},
      .skip_bias_add = true,
      .precision = precision_of(config),
      .layout = layout};
  if (has_bias) {
    spec.bias = {whole(prefix + columns.name + ".bias", {hidden}, bias_init(config))};
  }
  return with_adapters(spec, config, DividedSide::kColumns, sequence_first);
}

NewParameter mixer_numbers(const std::string& prefix,
                           const MixerRows& rows,
                           InitMethod init,
                           const TensorParallelLayout& layout) {
  const LogicalInit part =
      placed(prefix + rows.name + ".weight", {rows.total}, rows, init, 0, rows.own);
  return {.value = initial_value({rows.own}, {part}),
          .flags = {.decay = false, .tp = layout.part_gradient(), .tp_axis = 0},
          .logical = part.logical};
}

ConvolutionTaps::ConvolutionTaps(const std::string& prefix,
                                 const std::vector<MixerRows>& parts,
                                 int64_t taps,
                                 bool has_bias,
                                 const TensorParallelLayout& layout) {
  // As a convolution of one channel starts elsewhere: uniform within 1 / sqrt(taps).
  const InitMethod start = {InitMethod::Kind::kUniform,
                            1 / std::sqrt(3.0 * static_cast<double>(taps))};
  const int64_t channels = total_of(parts);
  std::vector<LogicalInit> weights;
  std::vector<LogicalInit> biases;
  int64_t at = 0;
  channels_axis_.size = 0;
  for (const MixerRows& part : parts) {
    channels_axis_.ranges.push_back({.begin = channels_axis_.size + part.first,
                                     .end = channels_axis_.size + part.first + part.own});
    channels_axis_.size += part.total;
    const std::string name = prefix + part.name;
    weights.push_back(placed(name + ".weight", {part.total, 1, taps}, part, start, at, channels));
    biases.push_back(placed(name + ".bias", {part.total}, part, start, at, channels));
    at += part.own;
  }
  weight_ = &register_parameter("weight", initial_value({channels, 1, taps}, weights),
                                {.tp = layout.part_gradient(), .tp_axis = 0});
  weight_->set_logical(logical_of(weights));
  if (has_bias) {
    bias_ = &register_parameter("bias", initial_value({channels}, biases),
                                {.decay = false, .tp = layout.part_gradient(), .tp_axis = 0});
    bias_->set_logical(logical_of(biases));
  }
}

std::string ConvolutionTaps::extra_repr() const {
  return concat("channels=", channels(), ", taps=", taps(), bias_ != nullptr ? ", bias" : "");
}

Tensor ConvolutionTaps::weight() const { return weight_->view({channels(), taps()}); }

Tensor ConvolutionTaps::forward(const Tensor& x,
                                bool silu,
                                const AttentionContext& context,
                                const ContextParallelLayout& layout) const {
  return context_parallel_convolution(
      x, weight(), {.bias = bias(), .silu = silu, .document_starts = context.document_starts},
      layout);
}

Tensor ConvolutionTaps::step(const Tensor& x,
                             bool silu,
                             const LayerStates& states,
                             const std::vector<int64_t>& slots) const {
  return short_convolution_step(x, weight(), bias(), silu, states.inputs, slots);
}

Tensor ConvolutionTaps::continued(const Tensor& x,
                                  bool silu,
                                  const LayerStates& states,
                                  int64_t slot) const {
  const int64_t back = taps() - 1;
  const Tensor kept = states.inputs.slice(0, slot, slot + 1);
  const Tensor before = kept.clone();
  const Tensor out =
      short_convolution(x, weight(), {.bias = bias(), .silu = silu, .previous = before});
  const int64_t fresh = std::min(back, x.size(1));
  copy_values(before.slice(1, fresh, back), kept.slice(1, 0, back - fresh));
  copy_values(x.slice(1, x.size(1) - fresh, x.size(1)), kept.slice(1, back - fresh, back));
  return out;
}

Tensor cached_rows(const Tensor& rows,
                   int64_t width,
                   const CachedStep& cached,
                   const LayerStates& states,
                   const std::function<Tensor(const Tensor&, const std::vector<int64_t>&)>& step,
                   const std::function<Tensor(const Tensor&, int64_t)>& pass) {
  Tensor out = zeros({1, rows.size(1), width}, rows.dtype());
  const std::vector<CachedSegment>& segments = cached.segments;
  int64_t row = 0;
  for (size_t i = 0; i < segments.size();) {
    std::vector<int64_t> slots;
    size_t end = i;
    for (; end < segments.size() && segments[end].count == 1; ++end) {
      slots.push_back(segments[end].slot);
    }
    end = std::max(end, i + 1);
    int64_t count = 0;
    for (size_t s = i; s < end; ++s) {
      count += segments[s].count;
      if (segments[s].position == 0) {
        states.clear(segments[s].slot);
      }
    }
    if (count > 0) {
      const Tensor own = rows.slice(1, row, row + count);
      const Tensor mixed = slots.empty() ? pass(own, segments[i].slot)
                                         : step(own.view({count, rows.size(2)}), slots);
      copy_values(mixed.view({1, count, width}), out.slice(1, row, row + count));
    }
    row += count;
    i = end;
  }
  return out;
}

void check_no_mask(const AttentionContext& context, const char* mixer) {
  check<ValueError>(
      !context.mask.defined(), mixer,
      ": the data have a mask, but a state that goes from token to token sees all of ",
      "them; take attention_mask out of the data, or pack documents by their ends "
      "(dataset_config.reset_attention_mask)");
}

}  // namespace tapestry
