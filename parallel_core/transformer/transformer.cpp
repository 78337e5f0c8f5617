#include "parallel_core/transformer/transformer.h"

#include "autograd/ops/elementwise.h"
#include "parallel_core/transformer/activation_recorder.h"
#include "parallel_core/transformer/norm.h"

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
      precision_(precision_of(config)) {
  const std::string prefix = "layers." + std::to_string(layer_) + ".";
  const auto add_norm = [&](const char* name, const char* logical, double scale = 1.0) {
    return static_cast<nn::UnaryModule*>(
        &add_child(name, get_norm(config, config.hidden_size, prefix + logical, scale)));
  };
  input_norm_ = add_norm("input_norm", "attention_norm");
  attention_ =
      &register_module<ParallelAttention>("attention", config, layer_number, sequence_first);
  if (config.use_sandwich_norm) {
    attn_post_norm_ =
        add_norm("attn_post_norm", "attention_post_norm", config.attn_post_norm_scale);
  }
  post_attention_norm_ = add_norm("post_attention_norm", "ffn_norm");
  mlp_ = &register_module<ParallelMLP>("mlp", config, layer_number);
  if (config.use_sandwich_norm) {
    ffn_post_norm_ = add_norm("ffn_post_norm", "ffn_post_norm", config.ffn_post_norm_scale);
  }
}

Tensor ParallelTransformerLayer::finish(const OutputAndBias& block,
                                        DropoutSite site,
                                        nn::UnaryModule* post_norm) const {
  Tensor out = block.bias.defined() ? add_bias(block.output, block.bias) : block.output;
  if (is_training()) {
    out = hidden_dropout(out, dropout_, layer_, site, batch_axis_);
  }
  return post_norm != nullptr ? apply_norm(*post_norm, out, precision_) : out;
}

Tensor ParallelTransformerLayer::add(const Tensor& residual, const Tensor& block) const {
  return (residual + block).to(precision_.residual);
}

Tensor ParallelTransformerLayer::forward(const Tensor& x, const AttentionContext& context) {
  const auto report = [&](const char* name, const Tensor& value) {
    report_activation(layer_, name, value, batch_axis_);
  };
  const Tensor normed = apply_norm(*input_norm_, x, precision_);
  report("attention_norm", normed);
  const Tensor attended =
      finish(attention_->forward(normed, context), DropoutSite::kAttentionOutput, attn_post_norm_);
  report("attention", attended);
  const Tensor middle = add(residual_from_norm_ ? normed : x, attended);
  const Tensor middle_normed = apply_norm(*post_attention_norm_, middle, precision_);
  report("ffn_norm", middle_normed);
  const Tensor fed = finish(mlp_->forward(middle_normed), DropoutSite::kMlpOutput, ffn_post_norm_);
  report("mlp", fed);
  Tensor out = add(residual_from_norm_ ? middle_normed : middle, fed);
  report("output", out);
  return out;
}

ParallelTransformer::ParallelTransformer(const TransformerConfig& config, bool sequence_first)
    : batch_axis_(sequence_first ? 1 : 0), precision_(precision_of(config)) {
  auto& list = register_module<LayerList>("layers");
  for (int64_t i = 0; i < config.num_layers; ++i) {
    layers_.push_back(&list.append(config, i, sequence_first));
  }
  if (config.use_final_norm) {
    final_norm_ = static_cast<nn::UnaryModule*>(
        &add_child("final_norm", get_norm(config, config.hidden_size, "final_norm")));
  }
}

Tensor ParallelTransformer::forward(const Tensor& hidden, const AttentionContext& context) {
  Tensor x = hidden;
  for (ParallelTransformerLayer* layer : layers_) {
    x = layer->forward(x, context);
  }
  if (final_norm_ == nullptr) {
    return x.to(precision_.activation);
  }
  x = apply_norm(*final_norm_, x, precision_);
  report_activation("final_norm", x, batch_axis_);
  return x;
}

}  // namespace tapestry
