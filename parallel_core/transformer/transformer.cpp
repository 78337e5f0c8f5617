#include "parallel_core/transformer/transformer.h"

#include "parallel_core/transformer/activation_recorder.h"

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
  mlp_ = &register_module<ParallelMLP>("mlp", config, layer_number, sequence_first);
  if (config.use_sandwich_norm) {
    ffn_post_norm_ = add_norm("ffn_post_norm", "ffn_post_norm", config.ffn_post_norm_scale);
  }
}

OutputAndBias ParallelTransformerLayer::finish(const OutputAndBias& block,
                                               DropoutSite site,
                                               ParallelNorm* post_norm) const {
  const bool drops = is_training() && dropout_ > 0;
  if (!drops && post_norm == nullptr) {
    return block;
  }
  Tensor out = add_bias(block.output, block.bias);
  if (drops) {
    out = hidden_dropout(out, dropout_, layer_, site, batch_axis_,
                         hidden_positions(context_layout_, layout_, out.size(1 - batch_axis_)));
  }
  return {post_norm != nullptr ? (*post_norm)(out) : out, {}};
}

ResidualStream ParallelTransformerLayer::forward(const ResidualStream& stream,
                                                 const AttentionContext& context) {
  const auto report = [&](const char* name, const Tensor& value) {
    report_activation(layer_, name, value, batch_axis_);
  };
  const auto report_block = [&](const char* name, const OutputAndBias& block) {
    if (activations_are_recorded()) {
      report(name, add_bias(block.output, block.bias));
    }
  };
  const AddNorm before = stream.normalize(*input_norm_);
  report("attention_norm", before.normed);
  const OutputAndBias attended = finish(attention_->forward(before.normed, context),
                                        DropoutSite::kAttentionOutput, attn_post_norm_);
  report_block("attention", attended);
  const ResidualStream middle = {residual_from_norm_ ? before.normed : before.sum, attended};
  const AddNorm between = middle.normalize(*post_attention_norm_);
  report("ffn_norm", between.normed);
  const OutputAndBias fed =
      finish(mlp_->forward(between.normed), DropoutSite::kMlpOutput, ffn_post_norm_);
  report_block("mlp", fed);
  ResidualStream out = {residual_from_norm_ ? between.normed : between.sum, fed};
  if (activations_are_recorded()) {
    report("output", out.sum(precision_));
  }
  return out;
}

ParallelTransformer::ParallelTransformer(const TransformerConfig& config,
                                         bool sequence_first,
                                         const PipelineStage& stage)
    : post_process_(stage.post_process()),
      batch_axis_(sequence_first ? 1 : 0),
      precision_(precision_of(config)) {
  auto& list = register_module<LayerList>("layers");
  for (const LayerRange& range : stage.chunks) {
    auto& layers = chunks_.emplace_back();
    for (int64_t i = range.first; i < range.first + range.count; ++i) {
      layers.push_back(&list.append(config, i, sequence_first));
    }
  }
  if (config.use_final_norm && post_process_) {
    final_norm_ = static_cast<ParallelNorm*>(&add_child(
        "final_norm", get_norm(config, config.hidden_size, "final_norm",
                               tensor_parallel_layout(config, sequence_first).hidden_gradient())));
  }
}

Tensor ParallelTransformer::forward(const Tensor& hidden,
                                    const AttentionContext& context,
                                    int chunk) {
  ResidualStream stream = {hidden};
  for (ParallelTransformerLayer* layer : chunks_.at(static_cast<size_t>(chunk))) {
    stream = layer->forward(stream, context);
  }
  if (!post_process_ || chunk + 1 < static_cast<int>(chunks_.size())) {
    return stream.sum(precision_);
  }
  if (final_norm_ == nullptr) {
    return stream.sum(precision_).to(precision_.activation);
  }
  Tensor out = stream.normalize(*final_norm_).normed;
  report_activation("final_norm", out, batch_axis_);
  return out;
}

}  // namespace tapestry
