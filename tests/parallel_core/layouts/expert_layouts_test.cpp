// Layouts of a model with experts against one process: sound ones agree, and mistakes that experts
// invite are found by the name of what they spoil.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "autograd/tensor/rank_context.h"
#include "tests/parallel_core/expert_model.h"
#include "tests/parallel_core/layouts/faulty_group.h"
#include "tests/parallel_core/layouts/layout_testing.h"

namespace tapestry {
namespace {

using testing::CollectiveCall;
using testing::CommunicationFault;
using testing::ExpertModel;
using testing::Overrides;

// The world of a rank, from which its groups are made again with those of experts.
struct RankWorld {
  std::shared_ptr<ProcessGroup> world;
};

struct ExpertRow {
  std::string layout;  // see parse_layout; without experts
  int ep = 1;
  std::optional<int> etp = {};
  Overrides overrides = {};
  bool all_to_first = false;

  std::string name() const {
    std::string out = concat(layout, ",ep=", ep);
    if (etp) {
      out += concat(",etp=", *etp);
    }
    for (const std::string& override : overrides) {
      out += " " + override.substr(override.find('.') + 1);
    }
    return out + (all_to_first ? " all to first" : "");
  }
  std::string joined_name() const {
    std::string out = name();
    std::replace_if(
        out.begin(), out.end(),
        [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
    return out;
  }
};
std::ostream& operator<<(std::ostream& out, const ExpertRow& row) { return out << row.name(); }

LayoutPair pair_of(const ExpertRow& row) {
  return testing::small_pair(
      row.layout, testing::joined({"model_config.vocab_size=32", "dataset_config.batch_size=2"},
                                  row.overrides));
}

// What a comparison of the row is made with, with a fault in its groups if there is one.
VerifyOptions options_of(const ExpertRow& row,
                         const std::shared_ptr<const CommunicationFault>& fault = nullptr) {
  VerifyOptions options{.steps = 2, .timeout_seconds = testing::kTestTimeout};
  options.parts = testing::made_up_data();
  options.parts.world = [fault](std::shared_ptr<ProcessGroup> world) {
    if (fault != nullptr) {
      world = testing::with_fault(std::move(world), fault);
    }
    RankContext::current().slot<RankWorld>().world = world;
    return world;
  };
  options.parts.before_step = [](ParallelModel&, int64_t step) { testing::start_step(step); };
  options.model = [row](const AllConfig& config) -> std::unique_ptr<ParallelModel> {
    if (get_world_group().size() > 1) {
      const ModelParallelSizes sizes = {
          .tensor_model_parallel_size = get_tensor_model_parallel_world_size(),
          .pipeline_model_parallel_size = get_pipeline_model_parallel_world_size(),
          .virtual_pipeline_model_parallel_size = get_virtual_pipeline_model_parallel_world_size(),
          .context_parallel_size = get_context_parallel_world_size(),
          .expert_model_parallel_size = row.ep,
          .expert_tensor_parallel_size = row.etp};
      destroy_model_parallel();
      initialize_model_parallel(sizes, RankContext::current().slot<RankWorld>().world);
    }
    return std::make_unique<ExpertModel>(config, row.all_to_first);
  };
  return options;
}

const Overrides kSgd = {"optimizer_config.optimizer_type=SGD",
                        "optimizer_config.learning_rate=0.1"};
const Overrides kSbh = {"dataset_config.data_layout=SBH"};
const Overrides kFourExpertLayers = {"model_config.num_layers=4"};
const Overrides kBf16 = {"training_config.bf16=True"};
const Overrides kPerToken = {"training_config.calculate_per_token_loss=True"};

std::vector<ExpertRow> rows_of_experts() {
  return {
      {"dp=2", 2},
      {"dp=2", 2, {}, kBf16, true},
      {"dp=4,micro=3", 4},
      {"dp=4,zero=z1,overlap", 2},
      {"dp=4,zero=z2,micro=2", 2},
      {"dp=4,zero=z3,micro=2", 2},
      {"dp=4,zero=z3", 2, {}, {}, true},
      {"tp=2,dp=2", 2},
      {"tp=2,dp=2", 2, {}, kPerToken},
      {"tp=2,sp,dp=2", 2},
      {"tp=2,sp,dp=2", 2, {}, kSbh},
      {"tp=2,sp,dp=2", 4, 1},
      {"tp=2,sp", 1, 1},
      {"dp=4", 2, 2},
      {"dp=4", 2, 2, {}, true},
      {"cp=2,dp=2", 2},
      {"cp=2,dp=2,zero=z3", 4},
      {"pp=2,dp=2,micro=2", 2},
      {"pp=2,vpp=2,dp=2,micro=3", 2, {}, kFourExpertLayers},
      {"tp=2,sp,pp=2,dp=2,zero=z1,micro=2", 2},
      {"tp=2,sp,cp=2,pp=2,dp=2,micro=2", 2},
  };
}

class LayoutsOfExperts : public ::testing::TestWithParam<ExpertRow> {};

TEST_P(LayoutsOfExperts, AgreeWithOneProcess) {
  const LayoutPair layouts = pair_of(GetParam());
  const LayoutReport report = compare_layout(layouts, options_of(GetParam()));
  EXPECT_TRUE(report.agrees()) << report_text(report, layouts);
}

TEST_P(LayoutsOfExperts, HaveTheSameBitsTwice) {
  const LayoutPair layouts = pair_of(GetParam());
  VerifyOptions options = options_of(GetParam());
  options.rounding_runs = 0;
  options.every_step = false;
  const LayoutReport first = compare_layout(layouts, options);
  EXPECT_EQ(first.checksums, compare_layout(layouts, options).checksums);
}

INSTANTIATE_TEST_SUITE_P(Rows,
                         LayoutsOfExperts,
                         ::testing::ValuesIn(rows_of_experts()),
                         [](const auto& info) { return info.param.joined_name(); });

// What a sound layout does, what goes wrong, and what has to be found first.
struct ExpertFault {
  std::string name;
  ExpertRow row;
  std::shared_ptr<const CommunicationFault> communication;
  std::function<void(ParallelModel&)> started;
  Compared what;
  std::string tensor;
};
std::ostream& operator<<(std::ostream& out, const ExpertFault& fault) { return out << fault.name; }

std::shared_ptr<const CommunicationFault> in_group(
    const char* group,
    Collective what,
    const std::function<bool(const CollectiveCall&)>& matches,
    const std::function<bool(const CollectiveCall&)>& act) {
  return std::make_shared<const CommunicationFault>(CommunicationFault{group, what, matches, act});
}

bool of_gradients(const CollectiveCall& call) {
  return call.input.dtype() == kFloat32 && call.input.numel() > 16;
}
bool of_rows(const CollectiveCall& call) { return call.input.dtype() == kFloat32; }
bool is_skipped(const CollectiveCall& /*call*/) { return true; }

void multiply(const Tensor& x, double factor) {
  const NoGradGuard guard;
  copy_values(x * factor, x);
}

nn::Parameter& of_name(ParallelModel& model, const std::string& path) {
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    if (entry.name == path) {
      return *entry.parameter;
    }
  }
  throw ValueError("no parameter " + path);
}

std::vector<ExpertFault> expert_faults() {
  const ExpertRow tp = {"tp=2,sp,dp=2", 2, {}, kSgd};
  const ExpertRow dp = {"dp=4", 2, {}, kSgd};
  const ExpertRow slices = {"dp=4", 2, 2, kSgd};
  return {
      {"experts_averaged_over_ep", dp,
       in_group("dp-independent_ep-", Collective::kAllReduce, of_gradients,
                [](const CollectiveCall& call) {
                  call.group.all_reduce(call.input);
                  multiply(call.input, 0.5);
                  return true;
                }),
       nullptr, Compared::kGradient, "layers.1.moe.experts.3.down.bias"},
      {"experts_not_summed_over_their_copies", dp,
       in_group("dp-independent_ep-", Collective::kAllReduce, of_gradients, is_skipped), nullptr,
       Compared::kGradient, "layers.1.moe.experts.3.down.bias"},
      {"experts_summed_over_all_data_parallel_ranks", dp, nullptr,
       [](ParallelModel& model) {
         for (const auto& entry : model.named_parameters()) {
           nn::ParameterFlags flags = entry.parameter->flags();
           flags.expert = false;
           entry.parameter->set_flags(flags);
         }
       },
       Compared::kGradient, "layers.1.moe.experts.3.down.bias"},
      {"router_not_summed_over_tp", tp, nullptr,
       [](ParallelModel& model) {
         nn::Parameter& router = of_name(model, "block1.router");
         nn::ParameterFlags flags = router.flags();
         flags.tp = nn::TensorParallel::kReplicated;
         router.set_flags(flags);
       },
       Compared::kGradient, "layers.1.moe.router.weight"},
      {"slices_of_experts_not_summed", slices,
       in_group("etp-", Collective::kAllToAll, of_rows,
                [](const CollectiveCall& call) {
                  // Rows are gathered and summed in each layer: what is summed second is lost on
                  // the way.
                  if (call.number == 3 && call.group.rank() == 1) {
                    multiply(call.input, 0);
                  }
                  return false;
                }),
       nullptr, Compared::kActivation, "layers.1.mlp"},
      {"rows_come_back_in_another_order",
       {"dp=2", 2, {}, kSgd},
       in_group("ep-", Collective::kAllToAll, of_rows,
                [](const CollectiveCall& call) {
                  // Dispatch and combine of layer 0, dispatch of layer 1, and what comes then.
                  if (call.number == 3) {
                    const int64_t rows = call.input.size(0);
                    const NoGradGuard guard;
                    copy_values(roll(call.input, {rows / 2}, {0}).contiguous(), call.input);
                  }
                  return false;
                }),
       nullptr,
       Compared::kActivation,
       "layers.1.mlp"},
      {"experts_named_by_their_place_on_the_rank",
       {"dp=2", 2, {}, kSgd},
       nullptr,
       [](ParallelModel& model) {
         // The second rank has the first one's experts.
         nn::Parameter& up = of_name(model, "block0.up");
         get_expert_model_parallel_group().broadcast(up.detach(), 0);
       },
       Compared::kActivation,
       "layers.0.mlp"},
      {"norm_leaves_out_experts_of_other_ranks",
       {"dp=2", 2, {}, kSgd},
       in_group(
           "ep-", Collective::kAllReduce,
           [](const CollectiveCall& call) { return call.input.numel() == 1; }, is_skipped),
       nullptr,
       Compared::kGradNorm,
       "grad_norm"},
      {"bias_of_slices_not_summed", slices, nullptr,
       [](ParallelModel& model) {
         nn::Parameter& bias = of_name(model, "block1.down_bias");
         nn::ParameterFlags flags = bias.flags();
         flags.tp = nn::TensorParallel::kReplicated;
         bias.set_flags(flags);
       },
       Compared::kGradient, "layers.1.moe.experts.3.down.bias"},
      {"gradients_do_not_come_back_to_their_rank",
       {"dp=2", 2, {}, kSgd},
       in_group("ep-", Collective::kAllToAll, of_rows,
                [](const CollectiveCall& call) {
                  // Forward makes four; the first of backward brings layer 1's gradients.
                  if (call.number == 4) {
                    multiply(call.input, 0);
                  }
                  return false;
                }),
       nullptr,
       Compared::kGradient,
       "layers.1.moe.experts.3.down.bias"},
      {"experts_updated_from_the_shard_of_another",
       {"dp=4,zero=z1", 2, {}, kSgd},
       in_group("dp-independent_ep-", Collective::kReduceScatter, of_gradients,
                [](const CollectiveCall& call) {
                  const int64_t size = call.output.numel();
                  const int64_t other = (call.group.rank() + 1) % call.group.size();
                  copy_values(call.input.view({-1}).slice(0, other * size, (other + 1) * size),
                              call.output.view({-1}));
                  return true;
                }),
       nullptr,
       Compared::kGradient,
       "layers.1.moe.experts.3.down.bias"},
  };
}

class FaultsOfExperts : public ::testing::TestWithParam<ExpertFault> {};

TEST_P(FaultsOfExperts, AreFoundWhereTheyBegin) {
  const ExpertFault& fault = GetParam();
  const LayoutPair layouts = pair_of(fault.row);
  VerifyOptions options = options_of(fault.row, fault.communication);
  options.parts.started = fault.started;
  const LayoutReport report = compare_layout(layouts, options);
  ASSERT_FALSE(report.agrees());
  const Finding first = *report.findings->first();
  std::cout << LayoutFindings::sentence(first) << "\n";
  EXPECT_EQ(name_of(first.what), name_of(fault.what));
  EXPECT_EQ(first.step, 1);
  EXPECT_EQ(first.name, fault.tensor);
}

TEST_P(FaultsOfExperts, WithoutThemNothingIsFound) {
  const LayoutPair layouts = pair_of(GetParam().row);
  const LayoutReport report = compare_layout(layouts, options_of(GetParam().row));
  EXPECT_TRUE(report.agrees()) << report_text(report, layouts);
}

INSTANTIATE_TEST_SUITE_P(Layouts,
                         FaultsOfExperts,
                         ::testing::ValuesIn(expert_faults()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tapestry
