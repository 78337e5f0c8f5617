#include "parallel_core/transformer/multi_token_prediction.h"

#include <string>

#include "autograd/ops/shape_ops.h"
#include "autograd/tensor/error.h"
#include "parallel_core/init_method.h"
#include "parallel_core/transformer/activation_recorder.h"

namespace tapestry {

namespace {

class PredictionLayers final : public nn::Module {
 public:
  std::string type_name() const override { return "ModuleList"; }
  PredictionLayer& append(const TransformerConfig& config, int64_t depth, bool sequence_first) {
    return register_module<PredictionLayer>(std::to_string(depth), config,
                                            config.num_layers + depth, sequence_first);
  }
};

ParallelLinearSpec joining_spec(const TransformerConfig& config,
                                const std::string& name,
                                const TensorParallelLayout& layout) {
  const int64_t hidden = config.hidden_size;
  return {.input_size = 2 * hidden,
          .output_size = hidden,
          .weight = {whole(name, {hidden, 2 * hidden}, weight_init(config))},
          .replicated = true,
          .precision = precision_of(config),
          .layout = layout};
}

}  // namespace

PredictionLayer::PredictionLayer(const TransformerConfig& config,
                                 int64_t layer,
                                 bool sequence_first)
    : layer_(layer),
      batch_axis_(sequence_first ? 1 : 0),
      num_streams_(config.hyper_connections.enabled ? config.hyper_connections.num_streams : 0),
      precision_(precision_of(config)),
      layout_(tensor_parallel_layout(config, sequence_first)) {
  const std::string prefix = concat("layers.", layer, ".mtp.");
  const auto add_norm = [&](const char* name) {
    return static_cast<ParallelNorm*>(&add_child(
        name, get_norm(config, config.hidden_size, prefix + name, layout_.hidden_gradient())));
  };
  enorm_ = add_norm("enorm");
  hnorm_ = add_norm("hnorm");
  eh_proj_ = &register_module<ColumnParallelLinear>(
      "eh_proj", joining_spec(config, prefix + "eh_proj.weight", layout_));
  transformer_layer_ = &register_module<ParallelTransformerLayer>("transformer_layer", config,
                                                                  layer + 1, sequence_first);
  final_norm_ = add_norm("final_norm");
}

Tensor PredictionLayer::forward(const Tensor& hidden,
                                const Tensor& embedded,
                                const AttentionContext& context) {
  const auto report = [&](const char* name, Tensor& value) {
    report_if_recorded([&] {
      pass_activation(layer_value(layer_, name), value,
                      hidden_axes(value, batch_axis_, context_parallel_layout(), layout_),
                      batch_axis_);
    });
  };
  Tensor joined =
      (*eh_proj_)(cat({(*enorm_)(embedded), (*hnorm_)(hidden)}, -1)).output.to(precision_.residual);
  report("mtp.input", joined);
  const bool has_streams = num_streams_ > 0;
  ResidualStream stream = (*transformer_layer_)(
      ResidualStream{has_streams ? copy_to_streams(joined, num_streams_) : joined}, context);
  if (has_streams) {
    stream.value = mean_of_streams(stream.value, num_streams_);
  }
  Tensor out = stream.normalize(*final_norm_).normed;
  report("mtp.final_norm", out);
  stream.release();
  return out;
}

MultiTokenPrediction::MultiTokenPrediction(const TransformerConfig& config, bool sequence_first) {
  auto& list = register_module<PredictionLayers>("layers");
  for (int64_t depth = 0; depth < config.mtp_num_layers; ++depth) {
    layers_.push_back(&list.append(config, depth, sequence_first));
  }
}

}  // namespace tapestry
