// A model with experts trains in every layout as it does in one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "parallel_core/optimizer/global_norm.h"
#include "parallel_core/pipeline_parallel/collect.h"
#include "tests/parallel_core/expert_model.h"
#include "tests/parallel_core/made_up_samples.h"
#include "tests/parallel_core/other_rounding.h"
#include "tests/parallel_core/parallel_testing.h"

namespace tapestry {
namespace {

using testing::ExpertLayout;
using testing::ExpertTrainer;
using testing::joined;
using testing::Overrides;
using testing::small_config;
using testing::State;

constexpr int64_t kMicroBatches = 4;  // of all ranks together

std::vector<ExpertLayout> expert_layouts() {
  const auto zero = [](const char* level) {
    return Overrides{concat("parallel_config.zero_level=", level)};
  };
  const Overrides sp = {"parallel_config.sequence_parallel=True"};
  const Overrides overlap = {"training_config.wrap_with_ddp=True",
                             "training_config.overlap_grad_reduce=True",
                             "training_config.bucket_size=500"};
  const Overrides gather = {"optimizer_config.overlap_param_gather=True"};
  const ModelParallelSizes ep2 = {.expert_model_parallel_size = 2};
  const ModelParallelSizes tp2ep2 = {.tensor_model_parallel_size = 2,
                                     .expert_model_parallel_size = 2};
  return {
      {"dp=2,ep=2", 2, ep2},
      {"dp=4,ep=4", 4, {.expert_model_parallel_size = 4}},
      {"dp=4,ep=2,overlap", 4, ep2, overlap},
      {"dp=4,ep=2,z1,overlap", 4, ep2, joined({zero("z1"), overlap, gather})},
      {"dp=4,ep=2,z2", 4, ep2, zero("z2")},
      {"dp=4,ep=2,z3", 4, ep2, zero("z3")},
      {"dp=4,ep=2,z3,overlap", 4, ep2, joined(zero("z3"), overlap)},
      {"dp=2,ep=2,z3", 2, ep2, zero("z3")},
      {"tp=2,dp=2,ep=2", 4, tp2ep2},
      {"tp=2,sp,dp=2,ep=2", 4, tp2ep2, sp},
      {"tp=2,sp,dp=2,ep=4,etp=1",
       4,
       {.tensor_model_parallel_size = 2,
        .expert_model_parallel_size = 4,
        .expert_tensor_parallel_size = 1},
       sp},
      {"tp=2,sp,etp=1", 2, {.tensor_model_parallel_size = 2, .expert_tensor_parallel_size = 1}, sp},
      {"tp=2,etp=1,z2",
       2,
       {.tensor_model_parallel_size = 2, .expert_tensor_parallel_size = 1},
       zero("z2")},
      {"dp=4,ep=2,etp=2", 4, {.expert_model_parallel_size = 2, .expert_tensor_parallel_size = 2}},
      {"dp=4,etp=2,z1", 4, {.expert_tensor_parallel_size = 2}, zero("z1")},
      {"cp=2,dp=2,ep=2", 4, {.context_parallel_size = 2, .expert_model_parallel_size = 2}},
      {"cp=2,dp=2,ep=4,z3",
       4,
       {.context_parallel_size = 2, .expert_model_parallel_size = 4},
       zero("z3")},
      {"pp=2,dp=2,ep=2", 4, {.pipeline_model_parallel_size = 2, .expert_model_parallel_size = 2}},
      {"tp=2,sp,pp=2,dp=2,ep=2,z1",
       8,
       {.tensor_model_parallel_size = 2,
        .pipeline_model_parallel_size = 2,
        .expert_model_parallel_size = 2},
       joined(zero("z1"), sp)},
      {"tp=2,sp,dp=4,ep=2,z3", 8, tp2ep2, joined(zero("z3"), sp)},
  };
}

struct ExpertRun {
  std::vector<StepResult> steps;
  State gradients;  // of the first step, on the ranks that gather them
  State weights;    // in the end, the same
};

ExpertRun train_experts(const AllConfig& config,
                        bool all_to_first,
                        const State& start = {},
                        int64_t steps = 3) {
  ExpertTrainer trainer(config, start, all_to_first);
  testing::MadeUpSamples samples(config);
  const bool in_groups = model_parallel_is_initialized();
  const int64_t rank = in_groups ? get_data_parallel_rank() : 0;
  const int64_t ranks = in_groups ? get_data_parallel_world_size() : 1;
  ExpertRun run;
  for (int64_t step = 0; step < steps; ++step) {
    std::vector<data::Batch> batches;
    for (int64_t m = 0; m < kMicroBatches / ranks; ++m) {
      batches.push_back(
          samples.micro_batch({step, 8 * step}, m, kMicroBatches / ranks, 2, rank, ranks));
    }
    if (step == 0) {
      trainer.cell->set_gradient_observer([&](int64_t) {
        run.gradients = gather_over_pipeline(logical_gradients(*trainer.model));
        for (auto& [name, gradient] : run.gradients) {
          gradient = gradient.clone();
        }
      });
    }
    run.steps.push_back((*trainer.cell)(batches));
    trainer.cell->set_gradient_observer({});
  }
  run.weights = gather_over_pipeline(get_logical_state(*trainer.model, trainer.optimizer.get()));
  return run;
}

struct ExpertCase {
  std::string name;
  Overrides overrides;
  bool all_to_first = false;
  double most_spread = 2e-3;  // of weights, by rounding alone
};
std::ostream& operator<<(std::ostream& out, const ExpertCase& c) { return out << c.name; }

class ExpertsInLayouts : public ::testing::TestWithParam<ExpertCase> {
 protected:
  AllConfig config_of(const ExpertLayout& layout) const {
    return layout.config(
        joined({"training_config.log_param_grad_norms=True", "optimizer_config.clip_grad=0.5",
                "optimizer_config.weight_decay=0.1"},
               GetParam().overrides));
  }
  ExpertRun alone(const State& start = {}) const {
    return train_experts(config_of({}), GetParam().all_to_first, start);
  }
};

TEST_P(ExpertsInLayouts, TrainAsInOneProcess) {
  const ExpertRun expected = alone();
  double gradients = 0;
  double weights = 0;
  testing::with_other_rounding(
      get_logical_state(*ExpertTrainer(config_of({})).model),
      config_of({}).model_config.compute_dtype, [&](const State& start) { return alone(start); },
      [&](const ExpertRun& again) {
        gradients =
            std::max(gradients, testing::largest_distance(again.gradients, expected.gradients));
        weights = std::max(weights, testing::largest_distance(again.weights, expected.weights));
      });
  ASSERT_LT(weights, GetParam().most_spread);
  for (const ExpertLayout& layout : expert_layouts()) {
    SCOPED_TRACE(layout.name);
    testing::run_parallel(layout.ranks, layout.sizes, [&] {
      const ExpertRun found = train_experts(config_of(layout), GetParam().all_to_first);
      ASSERT_EQ(found.steps.size(), expected.steps.size());
      for (size_t i = 0; i < found.steps.size(); ++i) {
        const double bound = testing::bound_of_spread(gradients);
        EXPECT_NEAR(found.steps[i].loss, expected.steps[i].loss, bound * expected.steps[i].loss);
        EXPECT_NEAR(found.steps[i].grad_norm, expected.steps[i].grad_norm,
                    bound * expected.steps[i].grad_norm);
        if (!is_pipeline_first_stage()) {
          continue;  // the first has what all stages know
        }
        ASSERT_EQ(found.steps[i].grad_norms.size(), expected.steps[i].grad_norms.size());
        for (const auto& [name, norm] : expected.steps[i].grad_norms) {
          EXPECT_NEAR(found.steps[i].grad_norms.at(name), norm, bound * expected.steps[i].grad_norm)
              << name;
        }
      }
      if (!found.weights.empty()) {
        testing::expect_states_close(found.gradients, expected.gradients,
                                     testing::bound_of_spread(gradients));
        testing::expect_states_close(found.weights, expected.weights,
                                     testing::bound_of_spread(weights));
      }
      const int gathers = get_tensor_model_parallel_rank() == 0 && is_pipeline_first_stage();
      EXPECT_EQ(!found.weights.empty(), gathers != 0);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Optimizers,
    ExpertsInLayouts,
    ::testing::Values(
        ExpertCase{"adamw", {}},
        // Ranks without rows, experts without tokens.
        ExpertCase{"adamw_all_to_first", {}, true},
        ExpertCase{"sgd", {"optimizer_config.optimizer_type=SGD"}},
        ExpertCase{"came", {"optimizer_config.optimizer_type=Came"}},
        ExpertCase{"adafactor", {"optimizer_config.optimizer_type=Adafactor"}},
        // Products in bfloat16, where they are fast, make far more of rounding.
        ExpertCase{"muon",
                   {"optimizer_config.optimizer_type=Muon", "optimizer_config.ns_dtype=float32"}},
        // Routers, too; their ranks are not those of the experts.
        ExpertCase{"muon_by_names",
                   {"optimizer_config.optimizer_type=Muon", "optimizer_config.ns_dtype=float32",
                    "optimizer_config.adamw_include=['*word_embeddings*', '*output_layer*']",
                    "optimizer_config.weight_decay=0.1",
                    "optimizer_config.weight_decay_exclude=['*experts.weight2', router]"}},
        ExpertCase{"remainders",
                   {"training_config.bf16=True", "optimizer_config.learning_rate=1e-3",
                    "optimizer_config.store_param_remainders=True"},
                   true,
                   0.02}),
    [](const auto& info) { return info.param.name; });

// A gradient that is not finite is one on every rank, wherever it comes from.
TEST(ExpertGradients, AreNotFiniteEverywhere) {
  const ExpertLayout layout = {
      "tp=2,dp=2,ep=2", 4, {.tensor_model_parallel_size = 2, .expert_model_parallel_size = 2}};
  testing::run_parallel(layout.ranks, layout.sizes, [&] {
    ExpertTrainer trainer(layout.config({}));
    const NoGradGuard guard;
    for (const auto& entry : trainer.model->named_parameters()) {
      if (get_world_group().rank() == 3 && entry.name == "block1.down") {
        copy_values(full(entry.parameter->shape(), std::numeric_limits<double>::quiet_NaN()),
                    *entry.parameter);
        entry.parameter->bump_version();
      }
    }
    testing::MadeUpSamples samples(trainer.config);
    const GradModeGuard recorded(true);
    const StepResult result =
        (*trainer.cell)({samples.micro_batch({0, 0}, 0, 1, 2, get_data_parallel_rank(), 2)});
    EXPECT_FALSE(result.finite);
    EXPECT_EQ(trainer.cell->position().applied, 0);
  });
}

// Rows go to their experts and back, and so do their gradients: 4 A H w bytes in a layer and
// micro-batch, whichever ranks the A rows are on.
TEST(ExpertRows, AreCommunicatedFourTimes) {
  for (const bool all_to_first : {false, true}) {
    for (const auto& [ranks, sizes] :
         {std::pair(2, ModelParallelSizes{.expert_model_parallel_size = 2}),
          std::pair(4, ModelParallelSizes{.tensor_model_parallel_size = 2,
                       .expert_model_parallel_size = 4,
                       .expert_tensor_parallel_size = 1})}) {
      const ExpertLayout layout = {"", ranks, sizes};
      testing::run_parallel(ranks, sizes, [&] {
        ExpertTrainer trainer(layout.config({}), {}, all_to_first);
        testing::MadeUpSamples samples(trainer.config);
        ProcessGroup& experts = get_expert_model_parallel_group();
        experts.reset_stats();
        (*trainer.cell)({samples.micro_batch({0, 0}, 0, 1, 2, get_data_parallel_rank(),
                                             get_data_parallel_world_size())});
        const Tensor bytes =
            tensor(std::vector<int64_t>{experts.stats().of(Collective::kAllToAll).bytes}, {1});
        get_world_group().all_reduce(bytes);
        const TransformerConfig& model = trainer.config.model_config;
        const int64_t rows = 2 * model.seq_length * get_data_parallel_world_size();
        const int64_t counts = ranks * testing::ExpertBlock::kExperts * size_of(kInt64);
        EXPECT_EQ(bytes.data<int64_t>()[0],
                  model.num_layers * (4 * rows * model.hidden_size * size_of(kFloat32) + counts));
      });
    }
  }
}

// The copies of an expert are on other ranks than those of everything else.
TEST(ExpertParameters, AreComparedWithTheirCopies) {
  const ExpertLayout layout = {"dp=4,ep=2", 4, {.expert_model_parallel_size = 2}};
  const auto differs_on_rank_2 = [&](const std::string& name) {
    testing::run_parallel(layout.ranks, layout.sizes, [&] {
      ExpertTrainer trainer(layout.config({}));
      if (get_world_group().rank() == 2) {
        const NoGradGuard guard;
        for (const auto& entry : trainer.model->named_parameters()) {
          if (entry.name == name) {
            copy_values(*entry.parameter + 1.0, *entry.parameter);
          }
        }
      }
      check_equal_parameters(*trainer.model, get_data_parallel_group());
    });
  };
  EXPECT_NO_THROW(differs_on_rank_2("none"));
  EXPECT_THAT([&] { differs_on_rank_2("block0.up"); },
              ::testing::ThrowsMessage<RuntimeError>(::testing::HasSubstr(
                  "the weights 'block0.up' of data-modulo-expert-parallel ranks 0 and 1 differ")));
  EXPECT_THAT([&] { differs_on_rank_2("block0.router"); },
              ::testing::ThrowsMessage<RuntimeError>(::testing::HasSubstr(
                  "the weights 'block0.router' of data-parallel ranks 0 and 2 differ")));
}

// What a rank keeps for its experts falls with ep and etp; with shards, with edp.
TEST(ExpertParameters, TakeTheirShareOfMemory) {
  const auto elements = [](const ModelParallelSizes& sizes, int ranks, const char* level) {
    ExpertLayout layout = {"", ranks, sizes};
    layout.overrides = {concat("parallel_config.zero_level=", level)};
    int64_t out = 0;
    testing::run_parallel(ranks, sizes, [&] {
      ExpertTrainer trainer(layout.config({}));
      int64_t own = 0;
      for (const auto& entry : trainer.model->named_parameters()) {
        own += entry.parameter->flags().expert && entry.parameter->dim() == 3
                   ? trainer.optimizer->own_part(entry.name).count
                   : 0;
      }
      const Tensor all = tensor(std::vector<int64_t>{own}, {1});
      get_world_group().all_reduce(all);
      if (get_world_group().rank() == 0) {
        out = all.data<int64_t>()[0];
      }
    });
    return out;
  };
  const int64_t whole = elements({}, 2, "z1");  // shards of two ranks make it up
  EXPECT_EQ(elements({.expert_model_parallel_size = 2}, 2, "z1"), whole);
  EXPECT_EQ(elements({.expert_model_parallel_size = 2}, 4, "z1"), whole);
  EXPECT_EQ(elements({.expert_model_parallel_size = 2, .expert_tensor_parallel_size = 2}, 4, "z1"),
            whole);
}

}  // namespace
}  // namespace tapestry
