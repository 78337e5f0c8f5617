#include <algorithm>
#include <memory>
#include <utility>

#include "autograd/ops/map.h"
#include "tests/parallel_core/drill/op_fault.h"
#include "tests/parallel_core/drill/planted_faults.h"
#include "tests/parallel_core/layouts/faulty_group.h"

namespace tapestry::testing {

namespace {

constexpr int64_t kTokens = 2 * 12;  // of a micro-batch of llama_tiny
constexpr int64_t kHiddenElements = kTokens * 24;

bool is_hidden(const CollectiveCall& call) { return call.input.numel() == kHiddenElements; }
bool is_for_parameters(const CollectiveCall& call) {
  return call.input.dtype() == kFloat32 && call.input.numel() > kTokens && !is_hidden(call);
}
std::function<bool(const CollectiveCall&)> is_left_out(int64_t number) {
  return [number](const CollectiveCall& call) { return call.number == number; };
}
bool is_always_left_out(const CollectiveCall& /*call*/) { return true; }

std::function<void(FindFaultOptions&)> in_layout(const std::string& layout,
                                                 CommunicationFault fault) {
  return [layout, shared = std::make_shared<const CommunicationFault>(std::move(fault))](
             FindFaultOptions& options) {
    options.expand = {layout};
    options.training.parts.world = [shared](std::shared_ptr<ProcessGroup> world) {
      return with_fault(std::move(world), shared);
    };
    options.training.parts.before_step = [](ParallelModel& /*model*/, int64_t step) {
      start_step(step);
    };
  };
}

void scale(const Tensor& x, double factor) {
  change_values(x, [factor](double value, int64_t /*at*/) { return value * factor; });
}

}  // namespace

std::vector<PlantedFault> layout_faults() {
  return {
      {"row_linear_not_summed",
       {},
       // Forward: the embedding, then attention and MLP of each layer.
       in_layout("tp=2", {"tp-", Collective::kAllReduce, is_hidden, is_left_out(3)}),
       {"forward"},
       "RowParallelLinear"},
      {"mlp_not_summed",
       {},
       in_layout("tp=2", {"tp-", Collective::kAllReduce, is_hidden, is_left_out(2)}),
       {"forward"},
       "layers.0.mlp"},
      {"column_linear_not_summed_in_backward",
       {},
       // The head, then MLP and attention of each layer.
       in_layout("tp=2", {"tp-", Collective::kAllReduce, is_hidden, is_left_out(6)}),
       {"backward"},
       "layers.1.*ffn_norm|post_attention_norm"},
      {"embedding_not_summed",
       {},
       in_layout("tp=2", {"tp-", Collective::kAllReduce, is_hidden, is_left_out(0)}),
       {"forward"},
       "Embedding"},
      {"sequence_gathered_in_wrong_order",
       {},
       in_layout("tp=2,sp",
                 {"tp-", Collective::kAllGather,
                  [](const CollectiveCall& call) { return call.output.numel() == kHiddenElements; },
                  [](const CollectiveCall& call) {
                    if (call.number != 0) {
                      return false;
                    }
                    call.group.all_gather(call.output, call.input);
                    const Tensor both = call.output.view({-1});
                    const Tensor first = both.slice(0, 0, kHiddenElements / 2);
                    const Tensor second = both.slice(0, kHiddenElements / 2, kHiddenElements);
                    const Tensor kept = dense_copy(first);
                    copy_values(second, first);
                    copy_values(kept, second);
                    return true;
                  }}),
       {"forward"},
       "layers.0.attention"},
      {"norm_gradients_not_summed",
       {},
       in_layout("tp=2,sp", {"tp-", Collective::kAllReduce, is_for_parameters, is_always_left_out}),
       {"backward", "reduction"},
       "norm"},
      {"gradients_not_divided_by_dp",
       {},
       in_layout("dp=2,micro=1", {"dp-", Collective::kAllReduce, is_for_parameters,
                                  [](const CollectiveCall& call) {
                                    call.group.all_reduce(call.input);
                                    scale(call.input, 2);
                                    return true;
                                  }}),
       {"backward", "reduction"},
       "lm_head|output_layer|final_norm"},
      {"gradients_not_summed_over_dp",
       {},
       in_layout("dp=2,micro=1",
                 {"dp-", Collective::kAllReduce, is_for_parameters, is_always_left_out}),
       {"backward", "reduction"},
       "lm_head|output_layer|final_norm"},
      {"gradient_message_scaled",
       {},
       in_layout("pp=2", {"pp-", Collective::kSend, is_hidden,
                          [](const CollectiveCall& call) {
                            if (call.group.rank() == 1) {
                              scale(call.input, 0.5);
                            }
                            return false;
                          }}),
       {"backward"},
       "layers.0"},
      {"own_keys_for_those_of_other_ranks",
       {},
       in_layout("cp=2", {"cp-", Collective::kAllGather, [](const CollectiveCall&) { return true; },
                          [](const CollectiveCall& call) {
                            // The first one is that of layer 0's keys and values.
                            if (call.number != 0) {
                              return false;
                            }
                            const int64_t size = call.input.numel();
                            for (int64_t i = 0; i < call.group.size(); ++i) {
                              copy_values(call.input.view({-1}), call.output.view({-1}).slice(
                                                                     0, i * size, (i + 1) * size));
                            }
                            return true;
                          }}),
       {"forward"},
       "layers.0.attention.context|ParallelAttention"},
  };
}

std::vector<FaultClass> fault_classes() {
  return {{"forward", forward_faults()},
          {"backward", backward_faults()},
          {"optimizer", optimizer_faults()},
          {"data", data_faults()},
          {"layout", layout_faults()}};
}

PlantedFault in_bfloat16(PlantedFault fault) {
  fault.model.changes.emplace_back("model_config.compute_dtype=bfloat16");
  return fault;
}

}  // namespace tapestry::testing
