#include "parallel_core/transformer/mlp.h"

#include <cmath>

#include "autograd/ops/shape_ops.h"
#include "parallel_core/context_parallel/context_parallel_layout.h"
#include "parallel_core/init_method.h"
#include "parallel_core/lora/low_rank_spec.h"
#include "parallel_core/transformer/activation_recorder.h"

namespace tapestry {

namespace {

ParallelLinearSpec mapping_spec(const TransformerConfig& config,
                                const TensorParallelLayout& layout,
                                int64_t ffn,
                                const std::string& prefix) {
  const int64_t hidden = config.hidden_size;
  const int64_t own = layout.share_of(ffn, "channels of the MLP");
  const int64_t first = layout.rank * own;
  std::vector<std::string> names = {prefix + "w_up"};
  if (has_gated_mlp(config)) {
    names.insert(names.begin(), prefix + "w_gate");
  }
  ParallelLinearSpec spec{.input_size = hidden,
                          .output_size = static_cast<int64_t>(names.size()) * own,
                          .skip_bias_add = true,  // added with the activation
                          .precision = precision_of(config),
                          .layout = layout};
  int64_t row = 0;
  const auto placed = [&](LogicalInit init) {
    init.logical.view_shape[0] = spec.output_size;
    init.logical.begin = row;
    init.logical.end = row + own;
    return init;
  };
  for (const std::string& name : names) {
    spec.weight.push_back(
        placed(sliced(name + ".weight", {ffn, hidden}, 0, first, own, weight_init(config))));
    if (config.mlp_has_bias) {
      spec.bias.push_back(placed(sliced(name + ".bias", {ffn}, 0, first, own, bias_init(config))));
    }
    row += own;
  }
  return spec;
}

ParallelLinearSpec projection_spec(const TransformerConfig& config,
                                   const TensorParallelLayout& layout,
                                   int64_t ffn,
                                   const std::string& prefix) {
  const int64_t hidden = config.hidden_size;
  const int64_t own = layout.share_of(ffn, "channels of the MLP");
  ParallelLinearSpec spec{.input_size = own,
                          .output_size = hidden,
                          .weight = {sliced(prefix + "w_down.weight", {hidden, ffn}, 1,
                                            layout.rank * own, own, output_weight_init(config))},
                          .skip_bias_add = true,
                          .precision = precision_of(config),
                          .layout = layout};
  if (config.mlp_has_bias) {
    spec.bias = {whole(prefix + "w_down.bias", {hidden}, bias_init(config))};
  }
  return spec;
}

}  // namespace

ParallelMLP::ParallelMLP(const TransformerConfig& config, int64_t layer_number, bool sequence_first)
    : ParallelMLP(config,
                  tapestry::ffn_hidden_size(config, layer_number - 1),
                  "layers." + std::to_string(layer_number - 1) + ".feed_forward.",
                  sequence_first) {
  layer_ = layer_number - 1;
}

ParallelMLP::ParallelMLP(const TransformerConfig& config,
                         int64_t ffn_hidden_size,
                         const std::string& prefix,
                         bool sequence_first)
    : act_name_(config.hidden_act),
      is_gated_(has_gated_mlp(config)),
      recomputes_(uses_fused_activation(config) && keeps_only_input(config)),
      sequence_first_(sequence_first),
      layout_(tensor_parallel_layout(config, sequence_first)) {
  if (config.hidden_act == "xielu") {
    // Start: both factors of the parabola and the exponential are 0.8.
    const nn::Parameter& p = add_number("alpha_p", prefix, std::log(std::expm1(0.8)));
    const nn::Parameter& n = add_number("alpha_n", prefix, std::log(std::expm1(0.8 - 0.5)));
    activation_ = [&p, &n](const Tensor& x, const Tensor& bias) {
      return xielu(add_bias(x, bias), p, n);
    };
  } else {
    activation_ = get_act_func(config);
  }
  mapping_ = &register_module<ColumnParallelLinear>(
      "mapping", with_adapters(mapping_spec(config, layout_, ffn_hidden_size, prefix), config,
                               DividedSide::kRows, sequence_first));
  projection_ = &register_module<RowParallelLinear>(
      "projection", with_adapters(projection_spec(config, layout_, ffn_hidden_size, prefix), config,
                                  DividedSide::kColumns, sequence_first));
}

// Each tensor-parallel rank uses it on channels of its own.
const nn::Parameter& ParallelMLP::add_number(const char* name,
                                             const std::string& prefix,
                                             double start) {
  const LogicalInit init = whole(concat(prefix, name, ".weight"), {1}, InitMethod::constant(start));
  nn::Parameter& parameter = register_parameter(name, initial_value({1}, {init}),
                                                {.decay = false, .tp = layout_.head_gradient()});
  parameter.set_logical({init.logical});
  return parameter;
}

OutputAndBias ParallelMLP::forward(const Tensor& x, const LayerPass& pass) {
  const OutputAndBias mapped = [&] {
    const RecomputeScope scope = pass.of(LayerOp::kMapping);
    return (*mapping_)(x, pass.keeps_gathered(LayerOp::kPostAttentionNorm));
  }();
  Tensor active = [&] {
    const RecomputeScope scope = pass.of(LayerOp::kActivation);
    return activation_(mapped.output, mapped.bias);
  }();
  const bool is_replaced = report(mapped, active);
  const RecomputeScope scope = pass.of(LayerOp::kProjection);
  if (!recomputes_ || is_replaced || pass.keeps(LayerOp::kActivation)) {
    return (*projection_)(active);
  }
  // The widest value of the layer is made from the one before it, which its own backward keeps.
  return (*projection_)(active, [activation = activation_, mapped] {
    return activation(mapped.output, mapped.bias);
  });
}

bool ParallelMLP::report(const OutputAndBias& mapped, Tensor& active) const {
  if (layer_ < 0 || !activations_are_recorded()) {
    return false;
  }
  const int64_t batch_axis = sequence_first_ ? 1 : 0;
  const auto axes_of = [&](const Tensor& value) {
    const int64_t own = value.size(2);
    std::vector<ReportedAxis> axes = {whole_axis(), whole_axis(),
                                      sliced_axis(layout_.rank * own, own, layout_.size * own)};
    axes[static_cast<size_t>(1 - batch_axis)] =
        token_axis(context_parallel_layout().positions(value.size(1 - batch_axis)));
    return axes;
  };
  const auto show = [&](const char* name, const Tensor& value) {
    report_activation(layer_value(layer_, name), value, axes_of(value), batch_axis);
  };
  const Tensor both = shown_only([&] { return add_bias(mapped.output, mapped.bias); });
  const int64_t channels = active.size(2);
  if (is_gated_) {
    show("mlp.gate", shown_only([&] { return both.slice(2, 0, channels); }));
    show("mlp.up", shown_only([&] { return both.slice(2, channels, 2 * channels); }));
  } else {
    show("mlp.up", both);
  }
  return pass_activation(layer_value(layer_, "mlp.active"), active, axes_of(active), batch_axis);
}

}  // namespace tapestry
