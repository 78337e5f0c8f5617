#include "parallel_core/transformer/attention.h"

#include <algorithm>
#include <cmath>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/map.h"
#include "autograd/ops/norm.h"
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

// Entries of a group in the fused projection.
struct GroupRows {
  GroupRows(const TransformerConfig& config, int64_t layer, int64_t queries_of_group)
      : queries(queries_of_group),
        gates(config.attention_output_gate ? queries : 0),
        keys(keys_from(config, layer) ? 0 : 1),
        values(value_is_key(config, layer) ? 0 : keys) {}

  int64_t queries;
  int64_t gates;
  int64_t keys;
  int64_t values;
  int64_t all() const { return queries + gates + keys + values; }
};

// Cuts wq, wk and wv out of the rows [groups, heads per group + 2, D] of the fused projection, in
// which the gates of heads stand behind their queries.
ParallelLinearSpec qkv_spec(const TransformerConfig& config,
                            int64_t layer,
                            const TensorParallelLayout& layout,
                            const std::string& prefix) {
  const int64_t hidden = config.hidden_size;
  const LayerWidths widths = layer_widths(config, layer);
  const int64_t dim = widths.channels;
  const HeadShare share = head_share(config, layer, layout);
  const GroupRows rows_of(config, layer, share.heads / share.groups);
  const int64_t in_group = rows_of.all();
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
  const int64_t gate = rows_of.queries;
  cut("wq", widths.queries, share.first_head, share.heads, 1, 0, gate);
  if (rows_of.gates > 0) {
    cut("wg", widths.queries, share.first_head, share.heads, 1, gate, gate + rows_of.gates);
  }
  const int64_t key = gate + rows_of.gates;
  if (rows_of.keys > 0) {
    cut("wk", widths.keys, share.first_group, share.groups, share.copies, key, key + 1);
  }
  if (rows_of.values > 0) {
    cut("wv", widths.keys, share.first_group, share.groups, share.copies, key + 1, key + 2);
  }
  return spec;
}

ParallelLinearSpec out_spec(const TransformerConfig& config,
                            int64_t layer,
                            const TensorParallelLayout& layout,
                            const std::string& prefix) {
  const int64_t context = layer_widths(config, layer).queries;
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
      total_groups_(num_query_groups(config, layer_)),
      head_dim_(kv_channels(config, layer_)),
      keys_from_(tapestry::keys_from(config, layer_)),
      gives_keys_(tapestry::gives_keys(config, layer_)),
      value_is_key_(tapestry::value_is_key(config, layer_)),
      norms_values_(config.v_layernorm),
      norm_epsilon_(config.norm_epsilon),
      rotates_(has_rotation(config, layer_)),
      gates_(config.attention_output_gate),
      norms_after_rotary_(config.qk_layernorm_after_rotary),
      clip_(config.clip_qkv),
      temperature_beta_(config.query_temperature_beta),
      temperature_length_(config.rotary_config.original_max_position_embeddings),
      precision_(precision_of(config)),
      context_layout_(context_parallel_layout()),
      core_(config,
            layer_,
            head_share(config, layer_, tensor_parallel_layout(config, sequence_first))) {
  const TensorParallelLayout layout = tensor_parallel_layout(config, sequence_first);
  const HeadShare share = head_share(config, layer_, layout);
  first_head_ = share.first_head;
  num_heads_ = share.heads;
  num_groups_ = share.groups;
  first_group_ = first_head_ / (total_heads_ / total_groups_);
  const std::string prefix = layer_prefix(layer_number);
  qkv_proj_ = &register_module<ColumnParallelLinear>(
      "qkv_proj", with_adapters(qkv_spec(config, layer_, layout, prefix), config,
                                DividedSide::kRows, sequence_first));
  if (config.qk_layernorm) {
    const auto add_norm = [&](const char* name, const HeadRange& heads) {
      return static_cast<nn::UnaryModule*>(
          &add_child(name, get_head_norm(config, heads, prefix + "." + name, layout)));
    };
    q_norm_ = add_norm("q_norm", {first_head_, num_heads_, total_heads_, 1, head_dim_});
    if (!keys_from_) {
      k_norm_ = add_norm("k_norm",
                         {share.first_group, num_groups_, total_groups_, share.copies, head_dim_});
    }
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
      "out_proj", with_adapters(out_spec(config, layer_, layout, prefix), config,
                                DividedSide::kColumns, sequence_first));
}

std::string ParallelAttention::extra_repr() const {
  std::string out = concat("heads=", num_heads_, ", groups=", num_groups_, ", dim=", head_dim_);
  if (keys_from_) {
    out += concat(", keys of layer ", *keys_from_);
  }
  return out + core_.described();
}

std::vector<RowFactors> ParallelAttention::score_factors(const std::vector<double>& factors) const {
  const int64_t of_group = total_heads_ / total_groups_;  // heads, on all ranks
  const int64_t own = num_heads_ / num_groups_;           // of these, on this one
  const bool takes_part = !keys_from_ && !gives_keys_ && !value_is_key_;
  std::vector<double> rows;
  const auto add = [&](double factor) { rows.insert(rows.end(), head_dim_, factor); };
  for (int64_t g = 0; g < num_groups_; ++g) {
    const auto first = factors.begin() + (first_group_ + g) * of_group;
    const double key = takes_part ? std::sqrt(*std::min_element(first, first + of_group)) : 1;
    for (int64_t h = 0; h < own; ++h) {
      add(factors[static_cast<size_t>(first_head_ + g * own + h)] / key);
    }
    for (int64_t h = 0; gates_ && h < own; ++h) {
      add(1);
    }
    if (!keys_from_) {
      add(key);
    }
    if (!keys_from_ && !value_is_key_) {
      add(1);
    }
  }
  std::vector<RowFactors> out = {{&qkv_proj_->weight(), rows}};
  if (qkv_proj_->bias() != nullptr) {
    out.push_back({qkv_proj_->bias(), rows});
  }
  return out;
}

// [B, S, n, D] or [S, B, n, D] -> [B, n, S, D]
Tensor ParallelAttention::heads(const Tensor& x) const {
  return sequence_first_ ? x.permute({1, 2, 0, 3}) : x.permute({0, 2, 1, 3});
}

Tensor ParallelAttention::normed_values(const Tensor& v, const LayerPass& pass) const {
  if (!norms_values_) {
    return v;
  }
  const RecomputeScope scope = pass.of(LayerOp::kVNorm);
  const auto norm = precision_.fused ? rms_norm : composed_rms_norm;
  return norm(precision_.norm == kFloat32 ? v : v.to(precision_.norm), {}, norm_epsilon_,
              precision_.activation);
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
  if (k_norm_ != nullptr) {
    k = normed(*k_norm_, k, LayerOp::kKNorm);
  }
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
  if (!keys_from_) {
    k = rotary.apply(k, context.position_ids);
  }
  if (temperature_beta_ > 0) {
    q = (q * temperatures(context, q.size(2))).to(q.dtype());
  }
}

// Leaves keys and values for later layers, or takes an earlier one's.
void ParallelAttention::share_keys(Tensor& k,
                                   Tensor& v,
                                   const AttentionContext& context,
                                   const LayerPass& pass) const {
  if (!keys_from_ && !gives_keys_) {
    return;
  }
  check<RuntimeError>(context.shared_keys != nullptr,
                      "attention: layers with num_kv_shared_layers need those before them in the "
                      "same pass");
  if (gives_keys_) {
    (*context.shared_keys)[layer_] = {k, v};
    // Later layers read them in their forward passes too.
    if (pass.values() != nullptr) {
      pass.values()->keep(k);
      pass.values()->keep(v);
    }
    return;
  }
  const auto found = context.shared_keys->find(*keys_from_);
  check<RuntimeError>(found != context.shared_keys->end(), "attention: layer ", layer_,
                      " has the keys and values of layer ", *keys_from_,
                      ", which was not computed before it");
  k = found->second.k;
  v = found->second.v;
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
    const int64_t keys = keys_from_ ? 0 : 1;
    const int64_t values = value_is_key_ ? 0 : keys;
    const Tensor fused =
        projected.view({first, second, num_groups_, per_group + gates + keys + values, head_dim_});
    const TensorList parts = split(fused, Shape{per_group, gates, keys, values}, 3);
    const auto shaped = [&](const Tensor& part, int64_t n) {
      return heads(part.reshape({first, second, n, head_dim_}));
    };
    q = shaped(parts[0], num_heads_);
    if (!keys_from_) {
      k = shaped(parts[2], num_groups_);
      v = value_is_key_ ? k : shaped(parts[3], num_groups_);
    }
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
  if (!keys_from_) {
    report("attention.key", k, first_group_, total_groups_);
    report("attention.value", v, first_group_, total_groups_);
    v = normed_values(v, pass);
  }
  if (!norms_after_rotary_) {
    norm_heads(q, k, pass);
  }
  if (clip_) {
    for (Tensor* const t : {&q, &k, &v}) {
      *t = t->defined() ? clamp(*t, -*clip_, *clip_) : *t;
    }
  }
  rotate(q, k, context, pass);
  if (norms_after_rotary_) {
    norm_heads(q, k, pass);
  }
  report("attention.q", q, first_head_, total_heads_);
  if (!keys_from_) {
    report("attention.k", k, first_group_, total_groups_);
    report("attention.v", v, first_group_, total_groups_);
  }
  share_keys(k, v, context, pass);
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
