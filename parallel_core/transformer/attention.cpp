#include "parallel_core/transformer/attention.h"

#include <cmath>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/map.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/config/model_matrices.h"
#include "parallel_core/init_method.h"
#include "parallel_core/lora/low_rank_spec.h"
#include "parallel_core/transformer/activation_recorder.h"

namespace tapestry {

namespace {

std::string layer_prefix(int64_t layer_number) {
  return "layers." + std::to_string(layer_number - 1) + ".attention";
}

// Cuts wq, wk and wv out of the rows [groups, heads per group + 2, D] of the fused projection, in
// which the gates of heads stand behind their queries.
ParallelLinearSpec qkv_spec(const TransformerConfig& config,
                            const TensorParallelLayout& layout,
                            const std::string& prefix) {
  const int64_t hidden = config.hidden_size;
  const LayerWidths widths = layer_widths(config);
  const int64_t dim = widths.channels;
  const HeadShare share = head_share(config, layout);
  const int64_t per_group = share.heads / share.groups;
  const int64_t gates = config.attention_output_gate ? per_group : 0;
  const int64_t in_group = per_group + gates + 2;
  ParallelLinearSpec spec{.input_size = hidden,
                          .output_size = share.groups * in_group * dim,
                          .precision = precision_of(config),
                          .layout = layout};
  // Of `rows` in all the rank has `own` heads or groups from `first` on; they are the entries
  // [begin, end) of each group.
  const auto cut = [&](const char* name, int64_t rows, int64_t first, int64_t own, int64_t copies,
                       int64_t begin, int64_t end) {
    const auto placed = [&](LogicalInit init, const Shape& view) {
      init.logical.view_shape = view;
      init.logical.axis = 1;
      init.logical.begin = begin;
      init.logical.end = end;
      init.logical.copies = copies;
      return init;
    };
    const std::string full_name = prefix + "." + name;
    spec.weight.push_back(placed(sliced(full_name + ".weight", {rows, hidden}, 0, first * dim,
                                        own * dim, weight_init(config)),
                                 {share.groups, in_group, dim, hidden}));
    if (config.qkv_has_bias) {
      spec.bias.push_back(
          placed(sliced(full_name + ".bias", {rows}, 0, first * dim, own * dim, bias_init(config)),
                 {share.groups, in_group, dim}));
    }
  };
  cut("wq", widths.queries, share.first_head, share.heads, 1, 0, per_group);
  if (gates > 0) {
    cut("wg", widths.queries, share.first_head, share.heads, 1, per_group, 2 * per_group);
  }
  const int64_t key = per_group + gates;
  cut("wk", widths.keys, share.first_group, share.groups, share.copies, key, key + 1);
  cut("wv", widths.keys, share.first_group, share.groups, share.copies, key + 1, key + 2);
  return spec;
}

ParallelLinearSpec out_spec(const TransformerConfig& config,
                            const TensorParallelLayout& layout,
                            const std::string& prefix) {
  const int64_t context = layer_widths(config).queries;
  const int64_t own = context / layout.size;
  ParallelLinearSpec spec{.input_size = own,
                          .output_size = config.hidden_size,
                          .weight = {sliced(prefix + ".wo.weight", {config.hidden_size, context}, 1,
                                            layout.rank * own, own, output_weight_init(config))},
                          .skip_bias_add = true,
                          .precision = precision_of(config),
                          .layout = layout};
  if (config.out_proj_has_bias) {
    spec.bias = {whole(prefix + ".wo.bias", {config.hidden_size}, bias_init(config))};
  }
  return spec;
}

}  // namespace

ParallelAttention::ParallelAttention(const TransformerConfig& config,
                                     int64_t layer_number,
                                     bool sequence_first)
    : layer_(layer_number - 1),
      sequence_first_(sequence_first),
      total_heads_(config.num_attention_heads),
      total_groups_(config.num_query_groups),
      head_dim_(config.kv_channels.value()),
      rotates_(has_rotation(config, layer_)),
      gates_(config.attention_output_gate),
      norms_after_rotary_(config.qk_layernorm_after_rotary),
      clip_(config.clip_qkv),
      temperature_beta_(config.query_temperature_beta),
      temperature_length_(config.rotary_config.original_max_position_embeddings),
      precision_(precision_of(config)),
      context_layout_(context_parallel_layout()),
      core_(config, layer_, head_share(config, tensor_parallel_layout(config, sequence_first))) {
  const TensorParallelLayout layout = tensor_parallel_layout(config, sequence_first);
  const HeadShare share = head_share(config, layout);
  first_head_ = share.first_head;
  num_heads_ = share.heads;
  num_groups_ = share.groups;
  first_group_ = first_head_ / (total_heads_ / total_groups_);
  const std::string prefix = layer_prefix(layer_number);
  qkv_proj_ = &register_module<ColumnParallelLinear>(
      "qkv_proj",
      with_adapters(qkv_spec(config, layout, prefix), config, DividedSide::kRows, sequence_first));
  if (config.qk_layernorm) {
    const auto add_norm = [&](const char* name, const HeadRange& heads) {
      return static_cast<nn::UnaryModule*>(
          &add_child(name, get_head_norm(config, heads, prefix + "." + name, layout)));
    };
    q_norm_ = add_norm("q_norm", {first_head_, num_heads_, total_heads_});
    k_norm_ = add_norm("k_norm", {share.first_group, num_groups_, total_groups_, share.copies});
  }
  if (config.attention_sinks) {
    const LogicalInit init = sliced(prefix + ".sinks.weight", {total_heads_}, 0, first_head_,
                                    num_heads_, InitMethod::constant(0));
    nn::Parameter& sinks =
        register_parameter("sinks", initial_value({num_heads_}, {init}),
                           {.decay = false, .tp = layout.part_gradient(), .tp_axis = 0});
    sinks.set_logical({init.logical});
    core_.set_sinks(sinks);
  }
  out_proj_ = &register_module<RowParallelLinear>(
      "out_proj", with_adapters(out_spec(config, layout, prefix), config, DividedSide::kColumns,
                                sequence_first));
}

std::string ParallelAttention::extra_repr() const {
  std::string out = concat("heads=", num_heads_, ", groups=", num_groups_, ", dim=", head_dim_);
  return out + core_.described();
}

// [B, S, n, D] or [S, B, n, D] -> [B, n, S, D]
Tensor ParallelAttention::heads(const Tensor& x) const {
  return sequence_first_ ? x.permute({1, 2, 0, 3}) : x.permute({0, 2, 1, 3});
}

void ParallelAttention::norm_heads(Tensor& q, Tensor& k, const LayerPass& pass) const {
  if (q_norm_ == nullptr) {
    return;
  }
  const auto normed = [&](nn::UnaryModule& norm, const Tensor& t, LayerOp op) {
    const RecomputeScope scope = pass.of(op);
    return norm(t);
  };
  q = normed(*q_norm_, q, LayerOp::kQNorm);
  k = normed(*k_norm_, k, LayerOp::kKNorm);
}

// The factor of the queries of each token, [B or 1, 1, S, 1].
Tensor ParallelAttention::temperatures(const AttentionContext& context, int64_t tokens) const {
  std::vector<float> factors;
  const auto add = [&](int64_t position) {
    factors.push_back(static_cast<float>(
        1 + temperature_beta_ * std::log1p(static_cast<double>(position / temperature_length_))));
  };
  if (context.position_ids.defined()) {
    for (const int64_t position : dense(context.position_ids).to_vector<int64_t>()) {
      add(position);
    }
  } else {
    for (const PositionRun& run : context_layout_.positions(tokens).runs) {
      for (int64_t position = run.first; position < run.first + run.count; ++position) {
        add(position);
      }
    }
  }
  return tensor(factors, {std::ssize(factors) / tokens, 1, tokens, 1});
}

void ParallelAttention::rotate(Tensor& q,
                               Tensor& k,
                               const AttentionContext& context,
                               const LayerPass& pass) const {
  if (!rotates_ || context.rotary == nullptr) {
    return;
  }
  const RecomputeScope scope = pass.of(LayerOp::kRotary);
  RotaryEmbedding& rotary = core_.window_left() && context.sliding_rotary != nullptr
                                ? *context.sliding_rotary
                                : *context.rotary;
  q = rotary.apply(q, context.position_ids);
  k = rotary.apply(k, context.position_ids);
  if (temperature_beta_ > 0) {
    q = (q * temperatures(context, q.size(2))).to(q.dtype());
  }
}

OutputAndBias ParallelAttention::forward(const Tensor& x,
                                         const AttentionContext& context,
                                         const LayerPass& pass) {
  int64_t first = 0;  // with sequence parallelism x has fewer tokens
  int64_t second = 0;
  Tensor q;
  Tensor k;
  Tensor v;
  Tensor gate;  // [.., heads of this rank * D], as what heads give is
  {
    const RecomputeScope scope = pass.of(LayerOp::kQkv);
    const Tensor projected = (*qkv_proj_)(x, pass.keeps_gathered(LayerOp::kInputNorm)).output;
    first = projected.size(0);
    second = projected.size(1);
    const int64_t per_group = num_heads_ / num_groups_;
    const int64_t gates = gates_ ? per_group : 0;
    const Tensor fused =
        projected.view({first, second, num_groups_, per_group + gates + 2, head_dim_});
    const TensorList parts = split(fused, Shape{per_group, gates, 1, 1}, 3);
    const auto shaped = [&](const Tensor& part, int64_t n) {
      return heads(part.reshape({first, second, n, head_dim_}));
    };
    q = shaped(parts[0], num_heads_);
    k = shaped(parts[2], num_groups_);
    v = shaped(parts[3], num_groups_);
    if (gates_) {
      gate = parts[1].reshape({first, second, num_heads_ * head_dim_});
    }
  }
  const auto report = [&](const char* name, Tensor& value, int64_t begin, int64_t total) {
    // Tokens of a cached pass have no place in a sequence that others have too.
    report_if_recorded([&] {
      if (context.cached != nullptr) {
        return;
      }
      pass_activation(layer_value(layer_, name), value,
                      {whole_axis(), sliced_axis(begin, value.size(1), total),
                       token_axis(context_layout_.positions(value.size(2))), whole_axis()});
    });
  };
  report("attention.query", q, first_head_, total_heads_);
  report("attention.key", k, first_group_, total_groups_);
  report("attention.value", v, first_group_, total_groups_);
  if (!norms_after_rotary_) {
    norm_heads(q, k, pass);
  }
  if (clip_) {
    for (Tensor* const t : {&q, &k, &v}) {
      *t = clamp(*t, -*clip_, *clip_);
    }
  }
  rotate(q, k, context, pass);
  if (norms_after_rotary_) {
    norm_heads(q, k, pass);
  }
  report("attention.q", q, first_head_, total_heads_);
  report("attention.k", k, first_group_, total_groups_);
  report("attention.v", v, first_group_, total_groups_);
  const DType compute = precision_.compute;
  Tensor merged = [&] {
    const RecomputeScope scope = pass.of(LayerOp::kCoreAttention);
    const Tensor operands[] = {q.to(compute), k.to(compute), v.to(compute)};
    const Tensor attended =
        (context.cached == nullptr
             ? core_.attend(operands[0], operands[1], operands[2], context, is_training())
             : core_.attend_cached(operands[0], operands[1], operands[2],
                                   {.groups = num_groups_, .head_dim = head_dim_}, *context.cached))
            .to(precision_.activation);  // [B, n, S, D]
    return (sequence_first_ ? attended.permute({2, 0, 1, 3}) : attended.permute({0, 2, 1, 3}))
        .reshape({first, second, num_heads_ * head_dim_});
  }();
  if (gates_) {
    const RecomputeScope scope = pass.of(LayerOp::kOutputGate);
    merged = merged * sigmoid(gate);
  }
  report_if_recorded([&] {
    const int64_t batch_axis = sequence_first_ ? 1 : 0;
    std::vector<ReportedAxis> axes = {
        whole_axis(), whole_axis(),
        sliced_axis(first_head_ * head_dim_, merged.size(2), total_heads_ * head_dim_)};
    axes[static_cast<size_t>(1 - batch_axis)] =
        token_axis(context_layout_.positions(merged.size(1 - batch_axis)));
    pass_activation(layer_value(layer_, "attention.context"), merged, axes, batch_axis);
  });
  const RecomputeScope scope = pass.of(LayerOp::kOutProj);
  return (*out_proj_)(merged);
}

}  // namespace tapestry
