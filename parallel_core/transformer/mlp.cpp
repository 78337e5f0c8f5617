#include "parallel_core/transformer/mlp.h"

#include "parallel_core/transformer/init_method.h"

namespace tapestry {

namespace {

bool uses_fused_activation(const TransformerConfig& config) {
  return is_gated(config.hidden_act) ? config.apply_swiglu_fusion.value_or(config.use_fused_kernels)
                                     : config.use_fused_kernels;
}

ParallelLinearSpec mapping_spec(const TransformerConfig& config, const std::string& prefix) {
  const int64_t hidden = config.hidden_size;
  const int64_t ffn = config.ffn_hidden_size;
  ParallelLinearSpec spec{.input_size = hidden,
                          .output_size = ffn,
                          .skip_bias_add = true,  // added with the activation
                          .precision = precision_of(config)};
  std::vector<std::string> names = {prefix + "w_up"};
  if (is_gated(config.hidden_act)) {
    spec.output_size = 2 * ffn;
    names.insert(names.begin(), prefix + "w_gate");
  }
  int64_t row = 0;
  for (const std::string& name : names) {
    spec.weight.push_back(
        {{name + ".weight", {ffn, hidden}, {spec.output_size, hidden}, 0, row, row + ffn},
         weight_init(config)});
    if (config.mlp_has_bias) {
      spec.bias.push_back(
          {{name + ".bias", {ffn}, {spec.output_size}, 0, row, row + ffn}, bias_init(config)});
    }
    row += ffn;
  }
  return spec;
}

ParallelLinearSpec projection_spec(const TransformerConfig& config, const std::string& prefix) {
  const int64_t hidden = config.hidden_size;
  const int64_t ffn = config.ffn_hidden_size;
  ParallelLinearSpec spec{
      .input_size = ffn,
      .output_size = hidden,
      .weight = {whole(prefix + "w_down.weight", {hidden, ffn}, output_weight_init(config))},
      .skip_bias_add = true,
      .precision = precision_of(config)};
  if (config.mlp_has_bias) {
    spec.bias = {whole(prefix + "w_down.bias", {hidden}, bias_init(config))};
  }
  return spec;
}

}  // namespace

ParallelMLP::ParallelMLP(const TransformerConfig& config, int64_t layer_number)
    : hidden_act_(config.hidden_act),
      activation_(get_act_func(config.hidden_act, uses_fused_activation(config))),
      recomputes_(uses_fused_activation(config) && keeps_only_input(config.hidden_act)) {
  const std::string prefix = "layers." + std::to_string(layer_number - 1) + ".feed_forward.";
  mapping_ = &register_module<ColumnParallelLinear>("mapping", mapping_spec(config, prefix));
  projection_ = &register_module<RowParallelLinear>("projection", projection_spec(config, prefix));
}

OutputAndBias ParallelMLP::forward(const Tensor& x) {
  const OutputAndBias mapped = mapping_->forward(x);
  const Tensor active = activation_(mapped.output, mapped.bias);
  if (!recomputes_) {
    return projection_->forward(active);
  }
  // The widest value of the layer is made from the one before it, which its own backward keeps.
  return projection_->forward(active, [activation = activation_, mapped] {
    return activation(mapped.output, mapped.bias);
  });
}

}  // namespace tapestry
