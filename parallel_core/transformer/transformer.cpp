#include "parallel_core/transformer/transformer.h"

#include <algorithm>

#include "autograd/ops/activation.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/map.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/init_method.h"
#include "parallel_core/transformer/activation_recorder.h"
#include "parallel_core/transformer/per_layer_embedding.h"

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

// The block's result stays apart until a norm reads the sum.
ResidualStream operator+(const ResidualStream& x, const OutputAndBias& block) {
  return {x.value, block};
}

}  // namespace

ParallelTransformerLayer::ParallelTransformerLayer(const TransformerConfig& config,
                                                   int64_t layer_number,
                                                   bool sequence_first)
    : layer_(layer_number - 1),
      batch_axis_(sequence_first ? 1 : 0),
      dropout_(config.hidden_dropout),
      multiplier_(config.residual_multiplier),
      residual_from_norm_(config.apply_residual_connection_post_norm),
      blocks_in_parallel_(has_parallel_blocks(config, layer_)),
      shares_norm_(shares_norm(config, layer_)),
      precision_(precision_of(config)),
      layout_(tensor_parallel_layout(config, sequence_first)),
      context_layout_(context_parallel_layout()) {
  if (!config.layer_recompute.empty()) {
    const int64_t kind = kind_of(config, layer_);
    LayerRecompute own = config.layer_recompute.at(static_cast<size_t>(kind));
    own.keeps_input = own.keeps_input || kind != layer_;  // nothing before it is made again
    recompute_ = recompute_policy(own, layer_op_names(config));
  }
  const std::string prefix = "layers." + std::to_string(layer_) + ".";
  const auto add_norm = [&](const char* name, const char* logical, double scale = 1.0) {
    return static_cast<ParallelNorm*>(&add_child(
        name,
        get_norm(config, config.hidden_size, prefix + logical, layout_.hidden_gradient(), scale)));
  };
  if (norms_inputs(config, layer_)) {
    input_norm_ = add_norm("input_norm", "attention_norm");
  }
  mixer_ = static_cast<TokenMixer*>(&add_child(mixer_name(mixer_kind(config, layer_)),
                                               get_mixer(config, layer_number, sequence_first)));
  if (norms_outputs(config, layer_)) {
    attn_post_norm_ =
        add_norm("attn_post_norm", "attention_post_norm", config.attn_post_norm_scale);
  }
  if (norms_inputs(config, layer_) && !shares_norm_) {
    post_attention_norm_ = add_norm("post_attention_norm", "ffn_norm");
  }
  if (has_experts_beside_dense(config, layer_)) {
    dense_mlp_ = &register_module<ParallelMLP>("dense_mlp", config, layer_number, sequence_first);
    dense_post_norm_ = add_norm("dense_post_norm", "dense_post_norm");
    moe_norm_ = add_norm("moe_norm", "moe_norm");
  }
  if (is_moe_layer(config, layer_)) {
    auto& experts = register_module<MoELayer>("mlp", config, layer_number, sequence_first);
    experts_ = dense_mlp_ != nullptr ? &experts : nullptr;
    mlp_ = &experts;
  } else {
    mlp_ = &register_module<ParallelMLP>("mlp", config, layer_number, sequence_first);
  }
  if (norms_outputs(config, layer_)) {
    ffn_post_norm_ = add_norm("ffn_post_norm", "ffn_post_norm", config.ffn_post_norm_scale);
  }
  if (dense_mlp_ != nullptr) {
    moe_post_norm_ = add_norm("moe_post_norm", "moe_post_norm");
  }
  if (config.hyper_connections.enabled) {
    const auto connect = [&](const char* name, const char* logical) {
      return &register_module<HyperConnection>(name, config, prefix + "hyper_connection." + logical,
                                               layout_);
    };
    attention_connection_ = connect("attention_hyper_connection", "attention");
    mlp_connection_ = connect("mlp_hyper_connection", "feed_forward");
  }
  if (const int64_t size = config.per_layer_embedding_size; size > 0) {
    const auto add_linear = [&](const char* name, int64_t in, int64_t out, const InitMethod& init) {
      return &register_module<ColumnParallelLinear>(
          name, replicated_spec(config, layout_, prefix + name, in, out, init, sequence_first));
    };
    per_layer_gate_ = add_linear("per_layer_gate", config.hidden_size, size, weight_init(config));
    per_layer_projection_ =
        add_linear("per_layer_projection", size, config.hidden_size, output_weight_init(config));
    per_layer_norm_ = add_norm("per_layer_norm", "per_layer_norm");
  }
  if (config.layer_scalar) {
    scalar_ = register_buffer("layer_scalar", ones({1}), prefix + "layer_scalar");
  }
}

// One pass of the layer: its four parts, each with what is recomputed of it and reported around it.
class ParallelTransformerLayer::Pass {
 public:
  Pass(const ParallelTransformerLayer& layer, const AttentionContext& context)
      : layer_(layer),
        context_(context),
        values_(layer.recompute_ && grad_enabled() ? std::make_shared<RecomputedValues>()
                                                   : nullptr),
        pass_(values_ != nullptr ? LayerPass(*layer.recompute_, *values_) : LayerPass()) {
    if (is_full()) {
      values_->set_repeats_communication(policy().repeats_communication);
    }
  }

  /// Adds to x what is pending, reads it, and lets go what the layer before recomputes.
  Tensor attention_norm(ResidualStream& x) {
    AddNorm out =
        normalize(x, layer_.input_norm_, LayerOp::kInputNorm, is_full() && !policy().keeps_input);
    x.release();
    if (slices() && layer_.attention_connection_ == nullptr) {
      slice_input(out.sum);
    }
    rest_.emplace(pass_);
    return read(x, out, layer_.input_norm_ != nullptr ? "attention_norm" : nullptr);
  }

  /// The streams as the layer before has left them. They stay, or are made again with that layer,
  /// which is then let go when this one has read them for the last time.
  Tensor entered(const ResidualStream& streams) {
    if (is_full() && !policy().keeps_input) {
      before_ = streams;
      return streams.value;
    }
    streams.keep();
    streams.release();
    if (slices()) {
      slice_input(streams.value);
    }
    return streams.value;
  }

  HyperConnectionReading read_streams(const Tensor& streams,
                                      const HyperConnection& connection,
                                      LayerOp op) const {
    const RecomputeScope scope = pass_.of(op);
    return connection(streams);
  }

  /// The streams behind the block whose result this is.
  Tensor write_streams(const HyperConnectionReading& reading,
                       const HyperConnection& connection,
                       const OutputAndBias& made,
                       const char* block,
                       const char* sum) const {
    const Tensor output = add_bias(made.output, made.bias);
    Tensor written = connection.write(reading, output);
    report_if_recorded([&] {
      report_activation(name_of(block), output, axes_of(output), layer_.batch_axis_);
      pass_activation(name_of(sum), written, axes_of(written), layer_.batch_axis_);
    });
    return written;
  }
  RecomputeScope adding() const { return pass_.of(LayerOp::kAdd); }

  /// The next layer decides what stays of the streams.
  ResidualStream end_in_streams(const Tensor& streams) const {
    before_.release();
    return {.value = streams, .recomputed = values_};
  }

  OutputAndBias mixer(const Tensor& normed) const {
    return finish((*layer_.mixer_)(normed, context_, pass_), LayerOp::kOutProj,
                  DropoutSite::kAttentionOutput, layer_.attn_post_norm_,
                  LayerOp::kAttentionPostNorm);
  }

  Tensor ffn_norm(ResidualStream& x) {
    AddNorm out = normalize(x, layer_.post_attention_norm_, LayerOp::kPostAttentionNorm,
                            values_ != nullptr && policy().recomputes(LayerOp::kAdd));
    return read(x, out, layer_.post_attention_norm_ != nullptr ? "ffn_norm" : nullptr);
  }

  /// The stream with nothing pending: where no norm reads the sum.
  ResidualStream added(const ResidualStream& x) const {
    const RecomputeScope scope = pass_.of(LayerOp::kAdd);
    return {x.sum(layer_.precision_)};
  }

  OutputAndBias mlp(const Tensor& normed) const {
    return finish((*layer_.mlp_)(normed, pass_), LayerOp::kProjection, DropoutSite::kMlpOutput,
                  layer_.ffn_post_norm_, LayerOp::kFfnPostNorm);
  }

  /// Of the sum behind attention, and what a norm has made of it.
  OutputAndBias dense_and_experts(const Tensor& normed, const Tensor& sum) const {
    const auto branch = [&](const OutputAndBias& block, ParallelNorm& norm) {
      const RecomputeScope scope = pass_.of(LayerOp::kFfnPostNorm);
      return norm(add_bias(block.output, block.bias));
    };
    Tensor dense = branch((*layer_.dense_mlp_)(normed, pass_), *layer_.dense_post_norm_);
    const Tensor read = [&] {
      const RecomputeScope scope = pass_.of(LayerOp::kPostAttentionNorm);
      return (*layer_.moe_norm_)(sum);
    }();
    Tensor experts =
        branch(layer_.experts_->forward_routed_by(read, sum, pass_), *layer_.moe_post_norm_);
    report_if_recorded([&] {
      pass_activation(name_of("mlp.dense"), dense, axes_of(dense), layer_.batch_axis_);
      pass_activation(name_of("mlp.experts"), experts, axes_of(experts), layer_.batch_axis_);
    });
    const OutputAndBias both = [&] {
      const RecomputeScope scope = pass_.of(LayerOp::kFfnPostNorm);
      return OutputAndBias{dense + experts, {}};
    }();
    return finish(both, LayerOp::kProjection, DropoutSite::kMlpOutput, layer_.ffn_post_norm_,
                  LayerOp::kFfnPostNorm);
  }

  /// What per-layer embeddings add to the sum z.
  OutputAndBias per_layer(const Tensor& z) const {
    const Tensor& embedded = context_.per_layer.at(static_cast<size_t>(layer_.layer_));
    const Tensor gated = [&] {
      const RecomputeScope scope = pass_.of(LayerOp::kPerLayerGate);
      const Tensor gate = (*layer_.per_layer_gate_)(z.to(layer_.precision_.activation)).output;
      const Tensor active = layer_.precision_.fused ? gelu_tanh(gate) : composed_gelu_tanh(gate);
      return (active * embedded).to(layer_.precision_.activation);
    }();
    const Tensor projected = [&] {
      const RecomputeScope scope = pass_.of(LayerOp::kPerLayerProjection);
      return (*layer_.per_layer_projection_)(gated).output;
    }();
    const RecomputeScope scope = pass_.of(LayerOp::kPerLayerNorm);
    return {(*layer_.per_layer_norm_)(projected), {}};
  }

  /// What comes behind the feed-forward block, whose result is still pending in x.
  ResidualStream behind_mlp(ResidualStream x) const {
    const bool scales = layer_.scalar_.defined();
    if (layer_.per_layer_gate_ == nullptr && !scales) {
      return shown(std::move(x), "mlp", "output");
    }
    x = shown(std::move(x), "mlp", "mlp_residual");
    if (layer_.per_layer_gate_ != nullptr) {
      x = added(x);
      x = shown(x + per_layer(x.value), "per_layer", scales ? "per_layer_residual" : "output");
    }
    // A multiplication by 1 is left out, unless somebody wants to see its result.
    const double scalar = scales ? layer_.scalar_.to(kFloat64).item() : 1.0;
    if (scalar != 1 || (scales && activations_are_recorded())) {
      const Tensor sum = added(x).value;
      const RecomputeScope scope = pass_.of(LayerOp::kAdd);
      x = {(sum * scalar).to(layer_.precision_.residual)};
      report_if_recorded([&] {
        pass_activation(name_of("output"), x.value, axes_of(x.value), layer_.batch_axis_);
      });
    }
    return x;
  }

  /// Shows a block's result, and what becomes of it by adding. Both are made only to be shown, as
  /// the next norm adds; but a sum that another takes the place of is made here.
  ResidualStream shown(ResidualStream x, const char* block, const char* sum) const {
    report_if_recorded([&] { show_sum(x, block, sum); });
    return x;
  }

  /// What is recomputed goes when the next layer has read the layer's result.
  ResidualStream end(ResidualStream x) const {
    if (values_ != nullptr && !x.pending.output.defined()) {
      values_->keep(x.value);  // which the next layer reads as it is
    }
    x.recomputed = values_;
    return x;
  }

 private:
  struct Rest {
    explicit Rest(const LayerPass& pass) : scope(pass.rest()) {}
    RecomputeScope scope;
  };

  const RecomputePolicy& policy() const { return *layer_.recompute_; }
  bool is_full() const { return values_ != nullptr && policy().full; }
  bool slices() const { return is_full() && policy().slices_input && policy().keeps_input; }
  std::vector<ReportedAxis> axes_of(const Tensor& value) const {
    return hidden_axes(value, layer_.batch_axis_, layer_.context_layout_, layer_.layout_);
  }
  std::string name_of(const char* value) const { return layer_value(layer_.layer_, value); }

  AddNorm normalize(const ResidualStream& stream,
                    ParallelNorm* norm,
                    LayerOp norm_op,
                    bool adds_again) const;
  void slice_input(const Tensor& input) const;
  Tensor read(ResidualStream& x, AddNorm& out, const char* name) const;
  OutputAndBias finish(const OutputAndBias& block,
                       LayerOp block_op,
                       DropoutSite site,
                       ParallelNorm* post_norm,
                       LayerOp post_norm_op) const;
  void show_sum(ResidualStream& x, const char* block, const char* sum) const;

  const ParallelTransformerLayer& layer_;
  const AttentionContext& context_;
  std::shared_ptr<RecomputedValues> values_;  // null: nothing is recomputed
  LayerPass pass_;
  std::optional<Rest> rest_;  // from the first norm on, around everything
  ResidualStream before_;     // streams that are made again with the layer before
};

AddNorm ParallelTransformerLayer::Pass::normalize(const ResidualStream& stream,
                                                  ParallelNorm* const norm_or_null,
                                                  LayerOp norm_op,
                                                  bool adds_again) const {
  RecomputedValues* const values = pass_.values();
  if (norm_or_null == nullptr) {
    const RecomputeScope scope(adds_again ? values : nullptr);
    const Tensor sum = stream.sum(layer_.precision_);
    return {sum, sum.to(layer_.precision_.activation)};
  }
  ParallelNorm& norm = *norm_or_null;
  if (values == nullptr) {
    return stream.normalize(norm);
  }
  AddNorm out;
  if (!stream.pending.output.defined() || !norm.adds_in_one_pass(stream.value)) {
    {
      const RecomputeScope scope(adds_again ? values : nullptr);
      out.sum = stream.sum(layer_.precision_);
    }
    const RecomputeScope scope = pass_.of(norm_op);
    out.normed = norm(out.sum);
    return out;
  }
  const RecomputeScope scope(adds_again ? values : nullptr);
  out = norm.add(stream.pending, stream.value);
  if (adds_again && !policy().recomputes(norm_op)) {
    values->keep(out.normed);
  } else if (!adds_again && policy().recomputes(norm_op)) {
    // From the sum, which has the same bits whoever has added it.
    values->add(out.normed, [&norm, sum = alias(out.sum)] { return norm.forward(sum); });
  }
  return out;
}

// Keeps the rank's share of what all tensor-parallel ranks have.
void ParallelTransformerLayer::Pass::slice_input(const Tensor& input) const {
  const TensorParallelLayout& layout = layer_.layout_;
  const bool whole_storage = input.is_contiguous() && input.offset() == 0 &&
                             input.storage()->bytes() == input.numel() * size_of(input.dtype());
  if (layout.size == 1 || layout.sequence_axis || !whole_storage) {
    return;
  }
  const NoGradGuard guard;
  const int64_t size = input.numel();
  const int64_t share = (size + layout.size - 1) / layout.size;
  const int64_t first = std::min(size, layout.rank * share);
  const Tensor own = zeros({share}, input.dtype());
  const int64_t count = std::min(share, size - first);
  copy_values(alias(input, {count}, {1}, first), alias(own, {count}, {1}, 0));
  values_->add(input, [own, shape = input.shape(), size, group = layout.group] {
    const Tensor all = empty({group->size() * own.numel()}, own.dtype());
    group->all_gather(all, own);
    Tensor out = empty(shape, own.dtype());
    copy_values(alias(all, {size}, {1}, 0), alias(out, {size}, {1}, 0));
    return out;
  });
}

// What the norm has made of x, shown by its name if there is one, and the sum, or where residuals
// start behind norms its result, as the x that the block is added to.
Tensor ParallelTransformerLayer::Pass::read(ResidualStream& x,
                                            AddNorm& out,
                                            const char* name) const {
  report_if_recorded([&] {
    if (name != nullptr) {
      pass_activation(name_of(name), out.normed, axes_of(out.normed), layer_.batch_axis_);
    }
  });
  x = {layer_.residual_from_norm_ ? out.normed : out.sum};
  return out.normed;
}

// Bias, dropout, the norm behind the block and the multiplier, as far as there are any.
OutputAndBias ParallelTransformerLayer::Pass::finish(const OutputAndBias& block,
                                                     LayerOp block_op,
                                                     DropoutSite site,
                                                     ParallelNorm* post_norm,
                                                     LayerOp post_norm_op) const {
  const bool drops = layer_.is_training() && layer_.dropout_ > 0;
  const double multiplier = layer_.multiplier_;
  if (!drops && post_norm == nullptr && multiplier == 1) {
    return block;
  }
  Tensor out;
  {
    const RecomputeScope scope = pass_.of(block_op);
    out = add_bias(block.output, block.bias);
    if (drops) {
      out = hidden_dropout(out, layer_.dropout_, layer_.layer_, site, layer_.batch_axis_,
                           hidden_positions(layer_.context_layout_, layer_.layout_,
                                            out.size(1 - layer_.batch_axis_)));
    }
  }
  const RecomputeScope scope = pass_.of(post_norm != nullptr ? post_norm_op : block_op);
  if (post_norm != nullptr) {
    out = (*post_norm)(out);
  }
  if (multiplier != 1) {
    out = out * multiplier;
  }
  return {out, {}};
}

void ParallelTransformerLayer::Pass::show_sum(ResidualStream& x,
                                              const char* block,
                                              const char* sum) const {
  const int64_t batch_axis = layer_.batch_axis_;
  const OutputAndBias made = x.pending;
  const Tensor result = shown_only([&] { return add_bias(made.output, made.bias); });
  const Tensor total = shown_only([&] { return x.sum(layer_.precision_); });
  Tensor with_gradient = made.output;
  if (activations_are_replaced()) {
    Tensor replaced = [&] {
      const UnobservedScope unobserved;
      return x.sum(layer_.precision_);
    }();
    if (replace_activation(name_of(sum), replaced, axes_of(replaced), batch_axis)) {
      x.value = with_gradient = replaced;
      x.pending = {};
    }
  }
  report_activation(name_of(block), result, axes_of(result), batch_axis, with_gradient);
  report_activation(name_of(sum), total, axes_of(total), batch_axis);
}

ResidualStream ParallelTransformerLayer::forward_in_streams(const ResidualStream& streams,
                                                            Pass& p) const {
  const HyperConnectionReading read =
      p.read_streams(p.entered(streams), *attention_connection_, LayerOp::kAttentionStreams);
  ResidualStream x = {read.input};
  const OutputAndBias attended = p.mixer(p.attention_norm(x));
  const Tensor between = [&] {
    const RecomputeScope scope = p.adding();
    return p.write_streams(read, *attention_connection_, attended, "attention",
                           "attention_residual");
  }();
  const HyperConnectionReading again =
      p.read_streams(between, *mlp_connection_, LayerOp::kMlpStreams);
  ResidualStream y = {again.input};
  return p.end_in_streams(
      p.write_streams(again, *mlp_connection_, p.mlp(p.ffn_norm(y)), "mlp", "output"));
}

ResidualStream ParallelTransformerLayer::forward(const ResidualStream& stream,
                                                 const AttentionContext& context) {
  Pass p(*this, context);
  if (attention_connection_ != nullptr) {
    return forward_in_streams(stream, p);
  }
  ResidualStream x = stream;
  // Each norm leaves in x the sum that it reads, and so that the block's result is added to.
  if (blocks_in_parallel_) {
    const Tensor normed = p.attention_norm(x);
    const ResidualStream h = p.shown(x + p.mixer(normed), "attention", "attention_residual");
    return p.end(p.behind_mlp(p.added(h) + p.mlp(shares_norm_ ? normed : p.ffn_norm(x))));
  }
  ResidualStream h = p.shown(x + p.mixer(p.attention_norm(x)), "attention", "attention_residual");
  const Tensor normed = p.ffn_norm(h);  // leaves the sum in h
  return p.end(p.behind_mlp(
      h + (dense_mlp_ != nullptr ? p.dense_and_experts(normed, h.value) : p.mlp(normed))));
}

ParallelTransformer::ParallelTransformer(const TransformerConfig& config,
                                         bool sequence_first,
                                         const PipelineStage& stage)
    : hidden_size_(config.hidden_size),
      num_layers_(config.num_layers),
      num_streams_(config.hyper_connections.enabled ? config.hyper_connections.num_streams : 0),
      per_layer_size_(config.per_layer_embedding_size),
      shares_keys_(config.num_kv_shared_layers > 0),
      post_process_(stage.post_process()),
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
                                    int chunk,
                                    const Tensor& per_layer) {
  AttentionContext own = context;
  std::map<int64_t, KeysAndValues> shared_keys;
  own.shared_keys = shares_keys_ ? &shared_keys : nullptr;
  ResidualStream stream = {hidden};
  Tensor embedded = per_layer;
  if (per_layer_size_ > 0) {
    const int64_t all = num_layers_ * per_layer_size_;
    if (!embedded.defined()) {
      const TensorList parts = split(hidden, Shape{hidden_size_, all}, 2);
      stream = {parts[0].contiguous()};
      embedded = parts[1];
    }
    own.per_layer = split(embedded, per_layer_size_, 2);
  }
  if (num_streams_ > 0 && hidden.size(2) == hidden_size_) {
    stream = {copy_to_streams(hidden, num_streams_)};
  }
  for (ParallelTransformerLayer* layer : chunks_.at(static_cast<size_t>(chunk))) {
    stream = (*layer)(stream, own);
  }
  const bool is_last = post_process_ && chunk + 1 == static_cast<int>(chunks_.size());
  if (num_streams_ > 0) {
    if (is_last) {
      stream = {.value = mean_of_streams(stream.value, num_streams_),
                .recomputed = stream.recomputed};
    } else {
      stream.keep();
    }
  }
  Tensor out;
  if (!is_last) {
    out = stream.sum(precision_);
    out = embedded.defined() ? cat({out, embedded}, 2) : out;
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
