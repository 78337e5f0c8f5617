#include "parallel_core/transformer/latent_attention.h"

#include <cmath>

#include "autograd/kernels/machine/exact.h"
#include "autograd/kernels/machine/one_order.h"
#include "autograd/ops/map.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tensor/error.h"
#include "parallel_core/init_method.h"
#include "parallel_core/lora/low_rank_spec.h"
#include "parallel_core/tensor_parallel/mappings.h"
#include "parallel_core/transformer/activation_recorder.h"

namespace tapestry {

namespace {

// Makes the linear layers of one attention.
class LinearMaker {
 public:
  LinearMaker(const TransformerConfig& config,
              const TensorParallelLayout& layout,
              int64_t layer,
              bool sequence_first)
      : config_(config),
        layout_(layout),
        prefix_(concat("layers.", layer, ".attention.")),
        sequence_first_(sequence_first) {}

  // On every rank.
  ParallelLinearSpec replicated(const std::string& name, int64_t in, int64_t out, bool bias) const {
    ParallelLinearSpec spec = start(in, out);
    spec.weight = {whole(weight(name), {out, in}, weight_init(config_))};
    spec.replicated = true;
    if (bias) {
      spec.bias = {whole(prefix_ + name + ".bias", {out}, bias_init(config_))};
    }
    return with_adapters(spec, config_, DividedSide::kRows, sequence_first_);
  }

  // Of a rank's heads, of `channels` rows each.
  ParallelLinearSpec by_heads(const std::string& name,
                              int64_t in,
                              const HeadShare& share,
                              int64_t channels) const {
    ParallelLinearSpec spec = start(in, share.heads * channels);
    spec.weight = {sliced(weight(name), {config_.num_attention_heads * channels, in}, 0,
                          share.first_head * channels, share.heads * channels,
                          weight_init(config_))};
    return with_adapters(spec, config_, DividedSide::kRows, sequence_first_);
  }

  ParallelLinearSpec output(const HeadShare& share, int64_t channels) const {
    const int64_t own = share.heads * channels;
    ParallelLinearSpec spec = start(own, config_.hidden_size);
    spec.weight = {sliced(weight("wo"),
                          {config_.hidden_size, config_.num_attention_heads * channels}, 1,
                          share.first_head * channels, own, output_weight_init(config_))};
    spec.skip_bias_add = true;
    if (config_.out_proj_has_bias) {
      spec.bias = {whole(prefix_ + "wo.bias", {config_.hidden_size}, bias_init(config_))};
    }
    return with_adapters(spec, config_, DividedSide::kColumns, sequence_first_);
  }

  std::unique_ptr<ParallelNorm> norm(const std::string& name, int64_t size) const {
    TransformerConfig own = config_;
    own.norm_epsilon = 1e-6;
    return get_norm(own, size, prefix_ + name, layout_.hidden_gradient());
  }

 private:
  ParallelLinearSpec start(int64_t in, int64_t out) const {
    return {.input_size = in,
            .output_size = out,
            .weight = {},
            .precision = precision_of(config_),
            .layout = layout_};
  }
  std::string weight(const std::string& name) const { return prefix_ + name + ".weight"; }

  const TransformerConfig& config_;
  const TensorParallelLayout& layout_;
  std::string prefix_;
  bool sequence_first_;
};

}  // namespace

MultiLatentAttention::MultiLatentAttention(const TransformerConfig& config,
                                           int64_t layer_number,
                                           bool sequence_first)
    : layer_(layer_number - 1),
      sequence_first_(sequence_first),
      rank_(config.kv_lora_rank),
      plain_(config.qk_head_dim),
      rotated_(config.qk_pos_emb_head_dim),
      values_(config.v_head_dim),
      precision_(precision_of(config)),
      layout_(tensor_parallel_layout(config, sequence_first)),
      context_layout_(context_parallel_layout()),
      share_(head_share(config, layer_, layout_)),
      total_heads_(config.num_attention_heads),
      core_(config, layer_, share_) {
  const LinearMaker make(config, layout_, layer_, sequence_first);
  const auto add_linear = [&](const char* name, const ParallelLinearSpec& spec) {
    return &register_module<ColumnParallelLinear>(name, spec);
  };
  const auto add_norm = [&](const char* name, int64_t size) {
    return static_cast<ParallelNorm*>(&add_child(name, make.norm(name, size)));
  };
  const int64_t hidden = config.hidden_size;
  const bool bias = config.qkv_has_bias;
  if (config.q_lora_rank) {
    const int64_t rank = *config.q_lora_rank;
    q_a_proj_ = add_linear("q_a_proj", make.replicated("wq_a", hidden, rank, bias));
    q_a_norm_ = add_norm("q_a_norm", rank);
    q_b_proj_ = add_linear("q_b_proj", make.by_heads("wq_b", rank, share_, plain_ + rotated_));
  } else {
    q_proj_ = add_linear("q_proj", make.by_heads("wq", hidden, share_, plain_ + rotated_));
  }
  kv_a_proj_ = add_linear("kv_a_proj", make.replicated("wkv_a", hidden, rank_ + rotated_, bias));
  kv_a_norm_ = add_norm("kv_a_norm", rank_);
  kv_b_proj_ = add_linear("kv_b_proj", make.by_heads("wkv_b", rank_, share_, plain_ + values_));
  out_proj_ = &register_module<RowParallelLinear>("out_proj", make.output(share_, values_));
}

std::string MultiLatentAttention::extra_repr() const {
  return concat("heads=", share_.heads, ", latent=", rank_, ", dim=", plain_, "+", rotated_,
                ", values=", values_, core_.described());
}

RowTurns MultiLatentAttention::row_turns() const {
  const std::string prefix = concat("layers.", layer_, ".attention.");
  return {{concat(prefix, q_proj_ != nullptr ? "wq" : "wq_b", ".weight"), {plain_, rotated_}},
          {prefix + "wkv_a.weight", {rank_, rotated_}},
          {prefix + "wkv_b.weight", {plain_, values_}}};
}

std::vector<RowFactors> MultiLatentAttention::score_factors(
    const std::vector<double>& factors) const {
  std::vector<double> queries;
  std::vector<double> keys;
  for (int64_t h = 0; h < share_.heads; ++h) {
    const double factor = factors[static_cast<size_t>(share_.first_head + h)];
    const double root = std::sqrt(factor);
    queries.insert(queries.end(), plain_, root);
    queries.insert(queries.end(), rotated_, factor);
    keys.insert(keys.end(), plain_, root);
    keys.insert(keys.end(), values_, 1);
  }
  const ColumnParallelLinear& q = q_proj_ != nullptr ? *q_proj_ : *q_b_proj_;
  return {{&q.weight(), queries}, {&kv_b_proj_->weight(), keys}};
}

// [B, S, n * D] or [S, B, n * D] -> [B, n, S, D]
Tensor MultiLatentAttention::heads(const Tensor& x, int64_t count, int64_t channels) const {
  const Tensor split = x.reshape({x.size(0), x.size(1), count, channels});
  return sequence_first_ ? split.permute({1, 2, 0, 3}) : split.permute({0, 2, 1, 3});
}

// Of what every rank makes of its piece of the sequence, or of all of it, for heads of its own.
Tensor MultiLatentAttention::whole_sequences(const Tensor& piece) const {
  if (layout_.size == 1) {
    return piece;
  }
  return layout_.sequence_axis
             ? gather_from_sequence_parallel_region(piece, *layout_.sequence_axis, *layout_.group)
             : copy_to_model_parallel_region(piece, *layout_.group);
}

void MultiLatentAttention::report(const char* name, Tensor& value) const {
  report_if_recorded([&] {
    pass_activation(layer_value(layer_, name), value,
                    {whole_axis(), sliced_axis(share_.first_head, value.size(1), total_heads_),
                     token_axis(context_layout_.positions(value.size(2))), whole_axis()});
  });
}

MultiLatentAttention::Parts MultiLatentAttention::make_parts(const Tensor& x,
                                                             const AttentionContext& context,
                                                             const LayerPass& pass) const {
  Parts out;
  Tensor q;
  Tensor shared;  // r, before it is rotated
  {
    const RecomputeScope scope = pass.of(LayerOp::kQkv);
    const Tensor queries = q_proj_ != nullptr
                               ? (*q_proj_)(x, pass.keeps_gathered(LayerOp::kInputNorm)).output
                               : (*q_b_proj_)((*q_a_norm_)((*q_a_proj_)(x).output)).output;
    out.first = queries.size(0);
    out.second = queries.size(1);
    q = heads(queries, share_.heads, plain_ + rotated_);
    const Tensor both = (*kv_a_proj_)(x).output;
    out.latent = (*kv_a_norm_)(both.slice(2, 0, rank_));
    shared = heads(whole_sequences(both.slice(2, rank_, rank_ + rotated_)), 1, rotated_);
  }
  const RecomputeScope scope = pass.of(LayerOp::kRotary);
  RotaryEmbedding& rotary = core_.window_left() && context.sliding_rotary != nullptr
                                ? *context.sliding_rotary
                                : *context.rotary;
  out.q_plain = q.slice(3, 0, plain_);
  out.q_rotated = rotary.apply(q.slice(3, plain_, plain_ + rotated_), context.position_ids);
  out.k_rotated = rotary.apply(shared, context.position_ids);
  return out;
}

MultiLatentAttention::Operands MultiLatentAttention::of_heads(const Parts& parts) const {
  const Tensor both = heads((*kv_b_proj_)(parts.latent).output, share_.heads, plain_ + values_);
  const Shape every_head = {both.size(0), share_.heads, both.size(2), rotated_};
  return {cat({parts.q_plain, parts.q_rotated}, 3),
          cat({both.slice(3, 0, plain_), parts.k_rotated.expand(every_head)}, 3),
          both.slice(3, plain_, plain_ + values_)};
}

Tensor MultiLatentAttention::attend(const Parts& parts, const AttentionContext& context) const {
  auto [q, k, v] = of_heads(parts);
  report("attention.q", q);
  report("attention.k", k);
  report("attention.v", v);
  const DType compute = precision_.compute;
  return core_.attend(q.to(compute), k.to(compute), v.to(compute), context, is_training());
}

Tensor MultiLatentAttention::attend_cached(const Parts& parts, const CachedStep& step) const {
  const DType compute = precision_.compute;
  if (in_one_order() || in_exact()) {  // the sums over the latent come first, as in training
    const auto [q, k, v] = of_heads(parts);
    return core_.attend_cached(
        q.to(compute), k.to(compute), v.to(compute),
        {.groups = share_.heads, .head_dim = plain_ + rotated_, .value_dim = values_}, step);
  }
  // [n, plain + values, rank]
  const Tensor matrix =
      kv_b_proj_->effective_weight().view({share_.heads, plain_ + values_, rank_});
  const Tensor to_keys = matrix.slice(1, 0, plain_);
  const Tensor to_values = matrix.slice(1, plain_, plain_ + values_);
  const Tensor latent = heads(whole_sequences(parts.latent), 1, rank_);
  const Tensor q =
      cat({matmul(parts.q_plain.to(compute), to_keys), parts.q_rotated.to(compute)}, 3);
  // c comes first, so that it is the values too.
  const Tensor k = cat({latent.to(compute), parts.k_rotated.to(compute)}, 3);
  const Tensor attended = core_.attend_cached(
      q, k, {},
      {.groups = 1, .head_dim = rank_ + rotated_, .value_dim = rank_, .values_in_keys = true},
      step);
  return matmul(attended, to_values.transpose(1, 2));
}

OutputAndBias MultiLatentAttention::forward(const Tensor& x,
                                            const AttentionContext& context,
                                            const LayerPass& pass) {
  check<ValueError>(context.rotary != nullptr, "multi-latent attention: there is no rotation");
  const Parts parts = make_parts(x, context, pass);
  Tensor merged = [&] {
    const RecomputeScope scope = pass.of(LayerOp::kCoreAttention);
    const Tensor attended =
        (context.cached == nullptr ? attend(parts, context) : attend_cached(parts, *context.cached))
            .to(precision_.activation);  // [B, n, S, values]
    return (sequence_first_ ? attended.permute({2, 0, 1, 3}) : attended.permute({0, 2, 1, 3}))
        .reshape({parts.first, parts.second, share_.heads * values_});
  }();
  report_if_recorded([&] {
    const int64_t batch_axis = sequence_first_ ? 1 : 0;
    std::vector<ReportedAxis> axes = {
        whole_axis(), whole_axis(),
        sliced_axis(share_.first_head * values_, merged.size(2), total_heads_ * values_)};
    axes[static_cast<size_t>(1 - batch_axis)] =
        token_axis(context_layout_.positions(merged.size(1 - batch_axis)));
    pass_activation(layer_value(layer_, "attention.context"), merged, axes, batch_axis);
  });
  const RecomputeScope scope = pass.of(LayerOp::kOutProj);
  return (*out_proj_)(merged);
}

}  // namespace tapestry
