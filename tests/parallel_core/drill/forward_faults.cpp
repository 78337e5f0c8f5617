#include <algorithm>

#include "autograd/ops/map.h"
#include "autograd/tape/grad_mode.h"
#include "parallel_core/random.h"
#include "parallel_core/training/step/get_model.h"
#include "tests/parallel_core/drill/op_fault.h"
#include "tests/parallel_core/drill/planted_faults.h"

namespace tapestry::testing {

namespace {

// Our model is that of another configuration.
std::function<void(FindFaultOptions&)> model_with_change(
    const std::function<void(TransformerConfig&)>& change) {
  return [change](FindFaultOptions& options) {
    options.training.parts.model = [change](const AllConfig& config) {
      AllConfig changed = config;
      change(changed.model_config);
      return get_model(changed);
    };
  };
}

// Weights that were taken over wrongly: changes the parameter with this path, once it is loaded.
std::function<void(FindFaultOptions&)> changed_weight(
    const std::string& path, const std::function<void(nn::Parameter&)>& change) {
  return [path, change](FindFaultOptions& options) {
    options.training.parts.started = [path, change](ParallelModel& model) {
      for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
        if (entry.name == path) {
          const NoGradGuard guard;
          change(*entry.parameter);
          entry.parameter->bump_version();
        }
      }
    };
  };
}

void swap_gate_and_up(nn::Parameter& mapping) {
  const Tensor gate = mapping.logical()[0].view_of(mapping);
  const Tensor up = mapping.logical()[1].view_of(mapping);
  const Tensor kept = dense_copy(gate);
  copy_values(up, gate);
  copy_values(kept, up);
}

void transpose(nn::Parameter& square) { copy_values(dense_copy(square.transpose(0, 1)), square); }

}  // namespace

std::vector<PlantedFault> forward_faults() {
  const std::string layers = "language_model.encoder.layers.";
  return {
      {"norm_eps",
       {},
       model_with_change([](TransformerConfig& c) { c.norm_epsilon = 1e-6; }),
       {"forward"},
       "layers.0.input_norm"},
      {"softmax_scale",
       {},
       // Scores are q k^T times the scale: larger queries are a larger scale.
       mistake_before({"scaled_dot_product_attention", "layers.0.attention"},
                      [](const OpRun& run) {
                        change_values(run.inputs[0],
                                      [](double q, int64_t /*at*/) { return 1.5 * q; });
                      }),
       {"forward"},
       R"(layers\.0\.attention \|)"},
      {"mask_off_by_one",
       {},
       // The last token does not see the first one any more.
       model_with_change([](TransformerConfig& c) {
         c.window_size = {c.seq_length - 2, 0};
       }),
       {"forward"},
       R"(layers\.0\.attention \|)"},
      {"rope_base",
       {},
       model_with_change([](TransformerConfig& c) { c.rotary_config.rotary_base = 20000; }),
       {"forward"},
       R"(layers\.0\.attention \|)"},
      {"gate_and_up_swapped",
       {},
       changed_weight(layers + "1.mlp.mapping.weight", swap_gate_and_up),
       {"forward"},
       "layers.1.mlp"},
      {"transposed_weight",
       {},
       changed_weight(layers + "1.attention.out_proj.weight", transpose),
       {"forward"},
       "layers.1.attention.out_proj"},
      {"bfloat16_for_float32",
       {},
       mistake_in({"swiglu_fused", "layers.1.mlp"}, result_rounded_to_bfloat16(0)),
       {"forward"},
       "layers.1.mlp"},
      {"norm_position",
       {},
       // The residual is taken behind the norm, not before it.
       model_with_change(
           [](TransformerConfig& c) { c.apply_residual_connection_post_norm = true; }),
       {"forward"},
       // In the sum, where the reference has it, else in the norm that follows.
       "layers.0.post_attention_norm|layers.0.attention_residual"},
      {"dropout_unscaled",
       {.stored = "gpt2_tiny", .changes = {"model_config.hidden_dropout=0.1"}},
       mistake_in({"dropout", "layers.1"}, result_times(0, 0.9)),
       {"forward"},
       "layers.1.attention"},
      {"activation_variant",
       // The formulas are the same but for rounding where weights are small.
       {.stored = "gpt2_tiny",
        .changes = {"model_config.init_method_std=0.5"},
        .starts_from_stored = false},
       // The formula with tanh is the configured one.
       model_with_change([](TransformerConfig& c) { c.hidden_act = "gelu"; }),
       {"forward"},
       "layers.0.mlp"},
  };
}

}  // namespace tapestry::testing
