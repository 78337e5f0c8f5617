#include "parallel_core/transformer/attention.h"

#include <cmath>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/map.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/ops/transformer/cached_attention.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/config/model_matrices.h"
#include "parallel_core/context_parallel/attention.h"
#include "parallel_core/init_method.h"
#include "parallel_core/lora/low_rank_spec.h"
#include "parallel_core/random.h"
#include "parallel_core/transformer/activation_recorder.h"

namespace tapestry {

namespace {

std::string layer_prefix(int64_t layer_number) {
  return "layers." + std::to_string(layer_number - 1) + ".attention";
}

// What a rank has of the heads and of the groups of keys and values.
struct HeadShare {
  int64_t first_head = 0;
  int64_t heads = 0;
  int64_t first_group = 0;
  int64_t groups = 0;
  int64_t copies = 1;  // ranks that hold the same groups
};

HeadShare head_share(const TransformerConfig& config, const TensorParallelLayout& layout) {
  const int64_t heads = config.num_attention_heads;
  const int64_t groups = config.num_query_groups;
  check<ValueError>(groups > 0 && heads % groups == 0, "attention: ", heads,
                    " heads are not a multiple of ", groups, " query groups");
  HeadShare share;
  share.heads = layout.share_of(heads, "attention heads");
  share.first_head = layout.rank * share.heads;
  if (groups % layout.size == 0) {
    share.groups = groups / layout.size;
    share.first_group = layout.rank * share.groups;
    return share;
  }
  check<ValueError>(layout.size % groups == 0, "attention: ", groups, " query groups and ",
                    layout.size, " tensor-parallel ranks: neither divides the other");
  share.groups = 1;
  share.copies = layout.size / groups;
  share.first_group = layout.rank / share.copies;
  return share;
}

// Cuts wq, wk and wv out of the rows [groups, heads per group + 2, D] of the fused projection.
ParallelLinearSpec qkv_spec(const TransformerConfig& config,
                            const TensorParallelLayout& layout,
                            const std::string& prefix) {
  const int64_t hidden = config.hidden_size;
  const LayerWidths widths = layer_widths(config);
  const int64_t dim = widths.channels;
  const HeadShare share = head_share(config, layout);
  const int64_t per_group = share.heads / share.groups;
  ParallelLinearSpec spec{.input_size = hidden,
                          .output_size = share.groups * (per_group + 2) * dim,
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
                                 {share.groups, per_group + 2, dim, hidden}));
    if (config.qkv_has_bias) {
      spec.bias.push_back(
          placed(sliced(full_name + ".bias", {rows}, 0, first * dim, own * dim, bias_init(config)),
                 {share.groups, per_group + 2, dim}));
    }
  };
  cut("wq", widths.queries, share.first_head, share.heads, 1, 0, per_group);
  cut("wk", widths.keys, share.first_group, share.groups, share.copies, per_group, per_group + 1);
  cut("wv", widths.keys, share.first_group, share.groups, share.copies, per_group + 1,
      per_group + 2);
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
      head_dim_(config.kv_channels.value()),
      mask_alone_(config.encoder_attn_mask_type == "padding"),
      scale_(1.0 / std::sqrt(static_cast<double>(head_dim_))),
      score_divisor_(config.apply_query_key_layer_scaling ? static_cast<double>(layer_number)
                                                          : 1.0),
      dropout_(config.attention_dropout),
      precision_(precision_of(config)),
      context_layout_(context_parallel_layout()) {
  const TensorParallelLayout layout = tensor_parallel_layout(config, sequence_first);
  const HeadShare share = head_share(config, layout);
  first_head_ = share.first_head;
  num_heads_ = share.heads;
  num_groups_ = share.groups;
  total_groups_ = config.num_query_groups;
  first_group_ = first_head_ / (total_heads_ / total_groups_);
  if (config.window_size.has_value()) {
    window_left_ = (*config.window_size)[0];
  }
  if (config.position_embedding_type == "alibi") {
    const std::vector<double> slopes = alibi_slopes(total_heads_);
    const auto first = slopes.begin() + first_head_;
    alibi_slopes_.assign(first, first + num_heads_);
  }
  const std::string prefix = layer_prefix(layer_number);
  qkv_proj_ = &register_module<ColumnParallelLinear>(
      "qkv_proj",
      with_adapters(qkv_spec(config, layout, prefix), config, DividedSide::kRows, sequence_first));
  if (config.qk_layernorm) {
    const auto add_norm = [&](const char* name) {
      return static_cast<ParallelNorm*>(&add_child(
          name, get_norm(config, head_dim_, prefix + "." + name, layout.head_gradient())));
    };
    q_norm_ = add_norm("q_norm");
    k_norm_ = add_norm("k_norm");
  }
  out_proj_ = &register_module<RowParallelLinear>(
      "out_proj", with_adapters(out_spec(config, layout, prefix), config, DividedSide::kColumns,
                                sequence_first));
}

std::string ParallelAttention::extra_repr() const {
  std::string out = concat("heads=", num_heads_, ", groups=", num_groups_, ", dim=", head_dim_);
  if (window_left_) {
    out += concat(", window=", *window_left_);
  }
  return out;
}

// [B, S, n, D] or [S, B, n, D] -> [B, n, S, D]
Tensor ParallelAttention::heads(const Tensor& x) const {
  return sequence_first_ ? x.permute({1, 2, 0, 3}) : x.permute({0, 2, 1, 3});
}

OutputAndBias ParallelAttention::forward(const Tensor& x,
                                         const AttentionContext& context,
                                         const LayerPass& pass) {
  int64_t first = 0;  // with sequence parallelism x has fewer tokens
  int64_t second = 0;
  Tensor q;
  Tensor k;
  Tensor v;
  {
    const RecomputeScope scope = pass.of(LayerOp::kQkv);
    const Tensor projected = (*qkv_proj_)(x, pass.keeps_gathered(LayerOp::kInputNorm)).output;
    first = projected.size(0);
    second = projected.size(1);
    const int64_t per_group = num_heads_ / num_groups_;
    const Tensor fused = projected.view({first, second, num_groups_, per_group + 2, head_dim_});
    const TensorList parts = split(fused, Shape{per_group, 1, 1}, 3);
    const auto shaped = [&](const Tensor& part, int64_t n) {
      return heads(part.reshape({first, second, n, head_dim_}));
    };
    q = shaped(parts[0], num_heads_);
    k = shaped(parts[1], num_groups_);
    v = shaped(parts[2], num_groups_);
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
  if (q_norm_ != nullptr) {
    const auto normed = [&](ParallelNorm& norm, const Tensor& t, LayerOp op) {
      const RecomputeScope scope = pass.of(op);
      return norm(t);
    };
    q = normed(*q_norm_, q, LayerOp::kQNorm);
    k = normed(*k_norm_, k, LayerOp::kKNorm);
  }
  if (context.rotary != nullptr) {
    const RecomputeScope scope = pass.of(LayerOp::kRotary);
    q = context.rotary->apply(q, context.position_ids);
    k = context.rotary->apply(k, context.position_ids);
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
             ? attend(operands[0], operands[1], operands[2], context)
             : attend_cached(operands[0], operands[1], operands[2], *context.cached))
            .to(precision_.activation);  // [B, n, S, D]
    return (sequence_first_ ? attended.permute({2, 0, 1, 3}) : attended.permute({0, 2, 1, 3}))
        .reshape({first, second, num_heads_ * head_dim_});
  }();
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

Tensor ParallelAttention::attend(const Tensor& q,
                                 const Tensor& k,
                                 const Tensor& v,
                                 const AttentionContext& context) const {
  const Tensor& mask = context.mask;
  const Tensor& starts = context.document_starts;
  AttentionOptions options{.causal = !mask_alone_ || !mask.defined(),
                           .window_left = window_left_,
                           .scale = scale_,
                           .mask = mask,
                           .document_starts = starts,
                           .alibi_slopes = alibi_slopes_};
  const bool fused = precision_.fused && precision_.softmax == kFloat32;
  const auto weigh = [&](const Tensor& a, const Tensor& b, const Tensor& c) {
    if (fused) {  // scores are float32 and never in memory
      return context_parallel_attention(a, b, c, options, context_layout_);
    }
    options.scale = scale_ * score_divisor_;
    const Tensor divided = score_divisor_ == 1 ? a : a / score_divisor_;
    return composed_context_parallel_attention(divided, b, c, options, context_layout_,
                                               precision_.softmax);
  };
  if (dropout_ == 0 || !is_training()) {
    return weigh(q, k, v);
  }
  options.dropout_p = dropout_;
  options.dropout_source = dropout_key(layer_, DropoutSite::kAttentionProbs);
  const int64_t length = q.size(2) * context_layout_.size;
  TensorList parts;
  for (const SampleRun& run : sample_runs(q.size(0))) {
    const auto rows = [&](const Tensor& t) { return t.slice(0, run.begin, run.end); };
    options.mask = mask.defined() ? rows(mask) : mask;
    options.document_starts = starts.defined() ? rows(starts) : starts;
    options.dropout_place = {
        .shape = {run.first_sample + run.end - run.begin, total_heads_, length, length},
        .start = {run.first_sample, first_head_, 0, 0},
        .sample_axis = 0};
    parts.push_back(weigh(rows(q), rows(k), rows(v)));
  }
  return parts.size() == 1 ? parts[0] : cat(parts, 0);
}

Tensor ParallelAttention::attend_cached(const Tensor& q,
                                        const Tensor& k,
                                        const Tensor& v,
                                        const CachedStep& step) const {
  const LayerCache& cache = step.cache->layer(layer_, {.groups = num_groups_,
                                                       .head_dim = head_dim_,
                                                       .dtype = k.dtype(),
                                                       .window_left = window_left_});
  cache.append(k, v, step.segments);
  const int64_t tokens = q.size(2);
  Tensor out;  // [1, N, H, D]
  const auto put = [&](int64_t first, const Tensor& part) {
    const int64_t count = part.size(1);
    if (count == tokens) {
      out = part;
      return;
    }
    if (!out.defined()) {
      out = zeros({1, tokens, num_heads_, head_dim_}, q.dtype());
    }
    copy_values(part, out.slice(1, first, first + count));
  };
  int64_t token = 0;
  for (size_t i = 0; i < step.segments.size();) {
    const CachedSegment& first = step.segments[i];
    size_t end = i + 1;
    while (first.count == 1 && end < step.segments.size() && step.segments[end].count == 1 &&
           step.segments[end].slot == step.segments[end - 1].slot + 1) {
      ++end;
    }
    const auto rows = static_cast<int64_t>(end - i);
    const int64_t count = rows * first.count;
    std::vector<int64_t> positions;
    for (size_t s = i; s < end; ++s) {
      positions.push_back(step.segments[s].position);
    }
    const auto slots = [&](const Tensor& t) { return t.slice(0, first.slot, first.slot + rows); };
    // Texts with one new token each lie side by side: their tokens are the rows of a batch.
    Tensor queries = q.slice(2, token, token + count);
    queries = rows > 1 ? queries.permute({2, 1, 0, 3}) : queries;
    const Tensor attended = cached_attention(queries, slots(cache.k), slots(cache.v), positions,
                                             {.window_left = window_left_,
                                              .scale = scale_,
                                              .alibi_slopes = alibi_slopes_,
                                              .ring = cache.ring});
    put(token, attended.permute({0, 2, 1, 3}).reshape({1, count, num_heads_, head_dim_}));
    token += count;
    i = end;
  }
  return out.permute({0, 2, 1, 3});
}

}  // namespace tapestry
