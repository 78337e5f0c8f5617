#include <map>

#include "autograd/ops/map.h"
#include "autograd/tape/grad_mode.h"
#include "parallel_core/dist_checkpointing/logical_state.h"
#include "parallel_core/optimizer/get_optimizer.h"
#include "tests/parallel_core/drill/op_fault.h"
#include "tests/parallel_core/drill/planted_faults.h"

namespace tapestry::testing {

namespace {

FaultyOp backward_of(const std::string& op, const std::string& module) {
  return {op, module, OpPass::kBackward};
}

// Computes step 2 with the values that step 1 had: the copy was not renewed.
void keep_first_copy(FindFaultOptions& options) {
  const auto kept = std::make_shared<std::map<std::string, Tensor>>();
  options.training.parts.before_step = [kept](ParallelModel& model, int64_t step) {
    const NoGradGuard guard;
    for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
      if (!entry.name.ends_with("layers.1.mlp.projection.weight")) {
        continue;
      }
      if (step == 1) {
        (*kept)[entry.name] = dense_copy(*entry.parameter);
      } else if (step == 3) {  // the first update has a learning rate of 0
        copy_values(kept->at(entry.name), *entry.parameter);
        entry.parameter->bump_version();
      }
    }
  };
}

}  // namespace

std::vector<PlantedFault> backward_faults() {
  return {
      {"activation_gradient_scaled",
       {},
       mistake_in(backward_of("swiglu_fused", "layers.1.mlp"), result_times(0, 1.01)),
       {"backward"},
       "layers.1.mlp"},
      {"residual_gradient_missing",
       {},
       // The sum that the norm hands on reaches the block, not the residual stream.
       mistake_in(backward_of("add_rms_norm", "layers.1.post_attention_norm"), result_times(1, 0)),
       {"backward"},
       "layers.1.(post_attention_norm|input_norm)"},
      {"bias_gradient_missing",
       {},
       mistake_in(backward_of("linear", "layers.1.attention.qkv_proj"), result_times(2, 0)),
       {"backward"},
       "layers.1.attention.qkv_proj"},
      {"rope_turned_the_wrong_way",
       {},
       mistake_in(backward_of("rope", "layers.0.attention"),
                  result_changed(0, [](double dx, int64_t at) { return at % 6 < 3 ? dx : -dx; })),
       {"backward"},
       "layers.0.attention"},
      {"norm_gain_of_half_the_rows",
       {.stored = "gpt2_tiny"},
       mistake_in(backward_of("add_layer_norm", "final_norm"), result_times(2, 0.5)),
       {"backward"},
       "final_norm"},
      {"branch_detached",
       {},
       mistake_in(backward_of("linear", "layers.1.attention.out_proj"), result_times(0, 0)),
       {"backward"},
       "layers.1.attention"},
      {"stale_compute_copy",
       {.changes = {"model_config.compute_dtype=bfloat16", "model_config.params_dtype=bfloat16"}},
       keep_first_copy,
       {"optimizer"},
       "layers.1.mlp.projection"},
      {"embedding_rows_not_summed",
       {},
       mistake_in(backward_of("embedding", "word_embeddings"), even_rows_of_result_halved(0)),
       {"backward"},
       "embedding"},
      {"softmax_gradient_without_its_row_sum",
       {},
       // What the keys get is then too large by a part of the queries' weight.
       mistake_in(backward_of("scaled_dot_product_attention", "layers.1.attention"),
                  result_times(1, 1.05)),
       {"backward"},
       "layers.1.attention"},
      {"embedding_gradient_in_bfloat16",
       {},
       mistake_in(backward_of("embedding", "word_embeddings"), result_rounded_to_bfloat16(0)),
       {"backward"},
       "word_embeddings"},
  };
}

}  // namespace tapestry::testing
