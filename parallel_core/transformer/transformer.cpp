#include "parallel_core/transformer/transformer.h"

#include "autograd/ops/elementwise.h"
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
      residual_from_norm_(config.apply_residual_connection_post_norm) {
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
  Tensor out = block.bias.defined() ? block.output + block.bias : block.output;
  if (is_training()) {
    out = hidden_dropout(out, dropout_, layer_, site, batch_axis_);
  }
  return post_norm != nullptr ? (*post_norm)(out) : out;
}

Tensor ParallelTransformerLayer::forward(const Tensor& x, const AttentionContext& context) {
  const Tensor normed = (*input_norm_)(x);
  const Tensor attended =
      finish(attention_->forward(normed, context), DropoutSite::kAttentionOutput, attn_post_norm_);
  const Tensor middle = (residual_from_norm_ ? normed : x) + attended;
  const Tensor middle_normed = (*post_attention_norm_)(middle);
  const Tensor fed = finish(mlp_->forward(middle_normed), DropoutSite::kMlpOutput, ffn_post_norm_);
  return (residual_from_norm_ ? middle_normed : middle) + fed;
}

ParallelTransformer::ParallelTransformer(const TransformerConfig& config, bool sequence_first) {
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
  return final_norm_ != nullptr ? (*final_norm_)(x) : x;
}

}  // namespace tapestry
