// Mistakes that mixtures of experts invite, made in the model itself: the comparison with one
// process finds each by the name of what it spoils.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "autograd/ops/ops.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/parallel_state.h"
#include "tests/parallel_core/layouts/faulty_group.h"
#include "tests/parallel_core/layouts/layout_testing.h"

namespace tapestry {
namespace {

using testing::CollectiveCall;
using testing::CommunicationFault;
using testing::Overrides;

struct MixtureFault {
  std::string name;
  std::string layout;
  Overrides overrides;
  std::shared_ptr<const CommunicationFault> communication;
  std::function<void(ParallelModel&)> started;
  // What has to be found first.
  Compared what;
  std::string tensor;
};
std::ostream& operator<<(std::ostream& out, const MixtureFault& fault) { return out << fault.name; }

LayoutPair pair_of_mixtures(const MixtureFault& fault) {
  const std::string moe = "moe_config.";
  return testing::small_pair(
      fault.layout,
      testing::joined(
          {{"model_config.vocab_size=32", "dataset_config.batch_size=2",
            "optimizer_config.optimizer_type=SGD", "optimizer_config.learning_rate=0.1",
            moe + "num_experts=4", moe + "moe_router_topk=2", moe + "moe_ffn_hidden_size=24",
            moe + "moe_router_load_balancing_type=aux_loss", moe + "moe_aux_loss_coeff=0.5",
            moe + "moe_shared_expert_intermediate_size=16", moe + "use_shared_expert_gating=True"},
           fault.overrides}));
}

VerifyOptions options_of_mixtures(
    const std::shared_ptr<const CommunicationFault>& fault = nullptr) {
  VerifyOptions options{.steps = 2, .timeout_seconds = testing::kTestTimeout};
  options.parts = testing::made_up_data();
  if (fault != nullptr) {
    options.parts.world = [fault](std::shared_ptr<ProcessGroup> world) {
      return testing::with_fault(std::move(world), fault);
    };
    options.parts.before_step = [](ParallelModel&, int64_t step) { testing::start_step(step); };
  }
  return options;
}

std::shared_ptr<const CommunicationFault> fault_in(
    const std::string& group,
    Collective what,
    std::function<bool(const CollectiveCall&)> matches,
    std::function<bool(const CollectiveCall&)> act) {
  return std::make_shared<const CommunicationFault>(
      CommunicationFault{group, what, std::move(matches), std::move(act)});
}

bool is_float(const CollectiveCall& call) { return call.input.dtype() == kFloat32; }
bool is_of_many(const CollectiveCall& call) { return is_float(call) && call.input.numel() > 64; }
bool is_int(const CollectiveCall& call) { return call.input.dtype() == kInt64; }
bool is_assignments(const CollectiveCall& call) { return is_int(call) && call.input.dim() == 2; }
bool is_double(const CollectiveCall& call) { return call.input.dtype() == kFloat64; }

void scale_in_place(const Tensor& x, double factor) {
  const NoGradGuard guard;
  copy_values(x * factor, x);
}

// Every rank believes that the others have what it has itself.
bool own_for_all(const CollectiveCall& call) {
  const NoGradGuard guard;
  const int64_t size = call.input.numel();
  for (int rank = 0; rank < call.group.size(); ++rank) {
    copy_values(call.input.view({size}),
                call.output.view({call.output.numel()}).slice(0, rank * size, (rank + 1) * size));
  }
  return true;
}

// Gates of others count as nothing, so that a rank's own tokens have the capacity for themselves.
bool own_first(const CollectiveCall& call) {
  call.group.all_gather(call.output, call.input);
  const int64_t width = call.input.size(1);
  const int64_t size = call.input.numel();
  auto* words = call.output.data<int64_t>();
  for (int64_t i = 0; i < call.output.numel(); ++i) {
    if (i / size != call.group.rank() && i % width != 0) {
      words[i] &= ~int64_t{0xffffffff};  // the bits of a gate, below those of an expert
    }
  }
  return true;
}

std::function<void(ParallelModel&)> without_sum_over_tp(const std::string& path) {
  return [path](ParallelModel& model) {
    bool found = false;
    for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
      if (entry.name.ends_with(path)) {
        nn::ParameterFlags flags = entry.parameter->flags();
        flags.tp = nn::TensorParallel::kReplicated;
        entry.parameter->set_flags(flags);
        found = true;
      }
    }
    check<ValueError>(found, "no parameter ", path);
  };
}

std::vector<MixtureFault> mixture_faults() {
  const Overrides drops = {"moe_config.moe_expert_capacity_factor=0.75"};
  const Overrides bias = {"moe_config.moe_router_score_function=sigmoid",
                          "moe_config.moe_router_enable_expert_bias=True",
                          "moe_config.moe_router_bias_update_rate=0.1"};
  return {
      {"experts_averaged_over_ep",
       "dp=4,ep=2",
       {},
       fault_in("dp-independent_ep-", Collective::kAllReduce, is_of_many,
                [](const CollectiveCall& call) {
                  call.group.all_reduce(call.input);
                  scale_in_place(call.input, 0.5);
                  return true;
                }),
       nullptr,
       Compared::kGradient,
       "layers.1.moe.experts.3.w_down.bias"},
      {"router_not_summed_over_tp",
       "tp=2,dp=2,ep=2",
       {},
       nullptr,
       without_sum_over_tp("layers.1.mlp.router.weight"),
       Compared::kGradient,
       "layers.1.moe.router.weight"},
      {"gate_of_the_shared_expert_not_summed_over_tp",
       "tp=2,sp,dp=2,ep=2",
       {},
       nullptr,
       without_sum_over_tp("layers.1.mlp.shared_expert_gate.weight"),
       Compared::kGradient,
       "layers.1.moe.shared_expert_gate.weight"},
      {"capacity_per_shard", "tp=2,sp,dp=2,ep=2", drops,
       fault_in("tp-cp-", Collective::kAllGather, is_assignments, own_first), nullptr,
       Compared::kChoice, "layers.0.moe.kept"},
      {"balance_of_a_shard_alone",
       "tp=2,dp=2,ep=2",
       {},
       fault_in("tp-cp-", Collective::kAllGather, is_int, own_for_all),
       nullptr,
       Compared::kExpertCounts,
       "layers.0.moe.tokens_per_expert"},
      {"bias_moved_by_the_counts_of_one_rank", "dp=2,ep=2", bias,
       fault_in("dp-", Collective::kAllGather, is_double, own_for_all), nullptr,
       Compared::kExpertCounts, "layers.0.moe.tokens_per_expert"},
      {"bias_of_one_rank_alone", "tp=2,dp=2,ep=2", bias, nullptr,
       [](ParallelModel& model) {
         for (const nn::Module::NamedBuffer& entry : model.named_buffers()) {
           if (entry.logical == "layers.0.moe.router.expert_bias" &&
               get_tensor_model_parallel_rank() == 1) {
             copy_values(tensor(std::vector<float>{0.5, 0, 0, 0}, {4}), entry.buffer);
           }
         }
       },
       Compared::kChoice, "layers.0.moe.choices"},
      {"experts_summed_over_all_data_parallel_ranks",
       "dp=4,ep=2",
       {},
       fault_in("dp-independent_ep-", Collective::kAllReduce, is_of_many,
                [](const CollectiveCall& call) {
                  get_data_parallel_group().all_reduce(call.input);
                  return true;
                }),
       nullptr,
       Compared::kGradient,
       "layers.1.moe.experts.3.w_down.bias"},
      {"rows_come_back_in_another_order",
       "dp=2,ep=2",
       {},
       fault_in("ep-", Collective::kAllToAll, is_float,
                [](const CollectiveCall& call) {
                  // Dispatch and combine of layer 0, dispatch of layer 1, and what comes then.
                  if (call.number == 3) {
                    const NoGradGuard guard;
                    copy_values(roll(call.input, {call.input.size(0) / 2}, {0}).contiguous(),
                                call.input);
                  }
                  return false;
                }),
       nullptr,
       Compared::kActivation,
       "layers.1.mlp"},
      {"slices_of_experts_not_summed",
       "dp=4,ep=2,etp=2",
       {},
       fault_in("etp-", Collective::kAllToAll, is_float,
                [](const CollectiveCall& call) {
                  // Rows are gathered and summed in each layer.
                  if (call.number == 3 && call.group.rank() == 1) {
                    scale_in_place(call.input, 0);
                  }
                  return false;
                }),
       nullptr,
       Compared::kActivation,
       "layers.1.mlp"},
      {"gradients_do_not_come_back_to_their_rank",
       "dp=2,ep=2",
       {},
       fault_in("ep-", Collective::kAllToAll, is_float,
                [](const CollectiveCall& call) {
                  // Forward makes four; the first of backward takes layer 1's to the experts.
                  if (call.number == 4) {
                    scale_in_place(call.input, 0);
                  }
                  return false;
                }),
       nullptr,
       Compared::kGradient,
       "layers.1.moe.experts.3.w_down.bias"},
  };
}

class FaultsOfMixtures : public ::testing::TestWithParam<MixtureFault> {};
INSTANTIATE_TEST_SUITE_P(Layouts,
                         FaultsOfMixtures,
                         ::testing::ValuesIn(mixture_faults()),
                         [](const auto& info) { return info.param.name; });

TEST_P(FaultsOfMixtures, AreFoundWhereTheyBegin) {
  const MixtureFault& fault = GetParam();
  const LayoutPair layouts = pair_of_mixtures(fault);
  VerifyOptions options = options_of_mixtures(fault.communication);
  options.parts.started = fault.started;
  const LayoutReport report = compare_layout(layouts, options);
  ASSERT_FALSE(report.agrees());
  const Finding first = *report.findings->first();
  std::cout << LayoutFindings::sentence(first) << "\n";
  EXPECT_EQ(name_of(first.what), name_of(fault.what));
  EXPECT_EQ(first.step, 1);
  EXPECT_EQ(first.name, fault.tensor);
}

TEST_P(FaultsOfMixtures, WithoutThemNothingIsFound) {
  const LayoutPair layouts = pair_of_mixtures(GetParam());
  const LayoutReport report = compare_layout(layouts, options_of_mixtures());
  EXPECT_TRUE(report.agrees()) << report_text(report, layouts);
}

}  // namespace
}  // namespace tapestry
