// Mixtures whose experts lie on several ranks, against one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "parallel_core/parameter_ranks.h"
#include "parallel_core/transformer/moe/moe_layer.h"
#include "tests/parallel_core/model_run.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/transformer/moe/mixture_testing.h"

namespace tapestry {
namespace {

using testing::joined;
using testing::mixture_config;
using testing::ModelRun;
using testing::Overrides;
using testing::run_parallel;
using testing::RunOptions;
using testing::State;
using testing::train_model;
using testing::Trainer;

using Change = std::function<void(MoEConfig&)>;

const Overrides kModel = {"optimizer_config.optimizer_type=SGD",
                          "optimizer_config.learning_rate=0.1", "model_config.hidden_act=swiglu",
                          "model_config.vocab_size=32"};

void with_everything(MoEConfig& moe) {
  moe.balance_losses = {{"aux_loss", 0.05}, {"seq_aux_loss", 0.02}};
  moe.moe_z_loss_coeff = 0.01;
  moe.moe_shared_expert_intermediate_size = 16;
  moe.use_shared_expert_gating = true;
  moe.moe_shared_expert_overlap = true;
}
void with_drops(MoEConfig& moe) {
  moe.moe_expert_capacity_factor = 0.75;
  moe.balance_losses = {{"aux_loss", 0.05}};
}

void with_padded_drops(MoEConfig& moe) {
  with_drops(moe);
  moe.moe_pad_expert_input_to_capacity = true;
}

struct MixtureLayout {
  std::string name;
  int ranks = 2;
  ModelParallelSizes sizes = {};
  Overrides overrides = {};
  Change change = with_everything;
  int64_t micro_batches = 4;

  Overrides model() const {
    return joined(kModel, sizes.virtual_pipeline_model_parallel_size
                              ? Overrides{"model_config.num_layers=4"}
                              : Overrides{});
  }
  AllConfig config() const {
    Overrides parallel = {
        concat("parallel_config.tensor_model_parallel_size=", sizes.tensor_model_parallel_size),
        concat("parallel_config.pipeline_model_parallel_size=", sizes.pipeline_model_parallel_size),
        concat("parallel_config.context_parallel_size=", sizes.context_parallel_size)};
    if (sizes.virtual_pipeline_model_parallel_size) {
      parallel.push_back(concat("parallel_config.virtual_pipeline_model_parallel_size=",
                                *sizes.virtual_pipeline_model_parallel_size));
    }
    return mixture_config(joined({model(), parallel, overrides}), change);
  }
};
std::ostream& operator<<(std::ostream& out, const MixtureLayout& layout) {
  return out << layout.name;
}

const Overrides kSequenceParallel = {"parallel_config.sequence_parallel=True"};
Overrides zero(const std::string& level) { return {"parallel_config.zero_level=" + level}; }

std::vector<MixtureLayout> mixture_layouts() {
  using Sizes = ModelParallelSizes;
  return {
      {"dp2_ep2", 2, Sizes{.expert_model_parallel_size = 2}},
      {"dp2_ep2_drops", 2, Sizes{.expert_model_parallel_size = 2}, {}, with_drops},
      {"dp2_ep2_padded", 2, Sizes{.expert_model_parallel_size = 2}, {}, with_padded_drops},
      {"tp2_dp2_ep2_padded",
       4,
       Sizes{.tensor_model_parallel_size = 2, .expert_model_parallel_size = 2},
       {},
       with_padded_drops},
      {"dp4_ep4", 4, Sizes{.expert_model_parallel_size = 4}},
      {"dp4_ep2_z1", 4, Sizes{.expert_model_parallel_size = 2}, zero("z1")},
      {"dp4_ep2_z2", 4, Sizes{.expert_model_parallel_size = 2}, zero("z2")},
      {"dp4_ep2_z3", 4, Sizes{.expert_model_parallel_size = 2}, zero("z3")},
      {"dp4_ep2_etp2", 4, Sizes{.expert_model_parallel_size = 2, .expert_tensor_parallel_size = 2}},
      {"tp2", 2, Sizes{.tensor_model_parallel_size = 2}},
      {"tp2_drops", 2, Sizes{.tensor_model_parallel_size = 2}, {}, with_drops},
      {"tp2_dp2_ep2", 4, Sizes{.tensor_model_parallel_size = 2, .expert_model_parallel_size = 2}},
      {"tp2_sp_dp2_ep2", 4, Sizes{.tensor_model_parallel_size = 2, .expert_model_parallel_size = 2},
       kSequenceParallel},
      {"tp2_sp_dp2_ep2_drops", 4,
       Sizes{.tensor_model_parallel_size = 2, .expert_model_parallel_size = 2}, kSequenceParallel,
       with_drops},
      {"tp2_sp_dp2_ep4_etp1", 4,
       Sizes{.tensor_model_parallel_size = 2,
             .expert_model_parallel_size = 4,
             .expert_tensor_parallel_size = 1},
       kSequenceParallel},
      {"tp2_sp_etp1", 2, Sizes{.tensor_model_parallel_size = 2, .expert_tensor_parallel_size = 1},
       kSequenceParallel},
      {"cp2_dp2_ep2", 4, Sizes{.context_parallel_size = 2, .expert_model_parallel_size = 2}},
      {"cp2_dp2_ep4_z3", 4, Sizes{.context_parallel_size = 2, .expert_model_parallel_size = 4},
       zero("z3"), with_drops},
      {"pp2_dp2_ep2", 4, Sizes{.pipeline_model_parallel_size = 2, .expert_model_parallel_size = 2}},
      {"pp2_vpp2_dp2_ep2",
       4,
       Sizes{.pipeline_model_parallel_size = 2,
             .virtual_pipeline_model_parallel_size = 2,
             .expert_model_parallel_size = 2},
       {},
       with_everything,
       6},
      {"tp2_sp_cp2_pp2_dp2_ep2", 16,
       Sizes{.tensor_model_parallel_size = 2,
             .pipeline_model_parallel_size = 2,
             .context_parallel_size = 2,
             .expert_model_parallel_size = 2},
       kSequenceParallel},
  };
}

// What one process does from moved weights; each made once.
struct SingleRun {
  State start;
  ModelRun run;
};
const SingleRun& single_run(const MixtureLayout& layout) {
  static auto& known = *new std::map<std::string, SingleRun>;  // NOLINT(*-owning-memory)
  const AllConfig config = mixture_config(layout.model(), layout.change);
  const std::string key = concat(config.model_config.num_layers, " ", layout.micro_batches, " ",
                                 config.model_config.moe.moe_expert_capacity_factor.has_value());
  auto found = known.find(key);
  if (found == known.end()) {
    const auto model = get_model(config);
    testing::jitter(*model, 0.05);
    SingleRun made = {get_logical_state(*model), {}};
    made.run = train_model(config, made.start, {.micro_batches = layout.micro_batches});
    found = known.emplace(key, std::move(made)).first;
  }
  return found->second;
}

class MixtureLayouts : public ::testing::TestWithParam<MixtureLayout> {};
INSTANTIATE_TEST_SUITE_P(All,
                         MixtureLayouts,
                         ::testing::ValuesIn(mixture_layouts()),
                         [](const auto& info) { return info.param.name; });

TEST_P(MixtureLayouts, TrainAsOneProcess) {
  const MixtureLayout& layout = GetParam();
  const SingleRun& single = single_run(layout);
  run_parallel(layout.ranks, layout.sizes, [&] {
    const ModelRun run =
        train_model(layout.config(), single.start, {.micro_batches = layout.micro_batches});
    testing::expect_same_run(run, single.run,
                             {.loss = 2e-6, .norm = 5e-6, .gradient = 2e-5, .weight = 1e-5});
  });
}

StepResult one_step(const MixtureLayout& layout, const State& start) {
  Trainer trainer(layout.config(), start);
  std::vector<data::Batch> batches;
  const int ranks = model_parallel_is_initialized() ? get_data_parallel_world_size() : 1;
  const int rank = model_parallel_is_initialized() ? get_data_parallel_rank() : 0;
  for (int64_t i = rank; i < layout.micro_batches; i += ranks) {
    batches.push_back(testing::make_batch(trainer.config, 2, 2 * i));
  }
  return trainer.cell(batches);
}

TEST_P(MixtureLayouts, CountAsOneProcess) {
  const MixtureLayout& layout = GetParam();
  const SingleRun& single = single_run(layout);
  MixtureLayout one = layout;
  one.sizes = {};
  one.overrides = {};
  if (layout.sizes.virtual_pipeline_model_parallel_size) {
    one.overrides = {"model_config.num_layers=4"};
  }
  const MoEStepStatistics expected = one_step(one, single.start).moe.value();
  ASSERT_EQ(expected.layers.size(), layout.sizes.virtual_pipeline_model_parallel_size ? 4U : 2U);
  EXPECT_GT(expected.aux_loss, 0);
  run_parallel(layout.ranks, layout.sizes, [&] {
    const MoEStepStatistics found = one_step(layout, single.start).moe.value();
    EXPECT_NEAR(found.aux_loss, expected.aux_loss, 1e-6 * expected.aux_loss);
    ASSERT_EQ(found.layers.size(), expected.layers.size());
    for (const auto& [number, layer] : expected.layers) {
      const MoELayerStatistics& own = found.layers.at(number);
      EXPECT_EQ(own.tokens_per_expert, layer.tokens_per_expert) << number;
      EXPECT_EQ(own.dropped_per_expert, layer.dropped_per_expert) << number;
      EXPECT_NEAR(own.smallest_router_gap, layer.smallest_router_gap, 1e-5) << number;
      EXPECT_NEAR(own.smallest_capacity_gap, layer.smallest_capacity_gap, 1e-5) << number;
    }
  });
}

// Bytes of all-to-alls, of all ranks together, in a step of one micro-batch on each rank.
TEST(MixtureTraffic, IsEachKeptAssignmentFourTimes) {
  for (const Change& change : {Change(nullptr), Change(with_drops)}) {
    const MixtureLayout layout = {"", 2, {.expert_model_parallel_size = 2}, {}, change, 2};
    std::atomic<int64_t> bytes = 0;
    std::atomic<int64_t> assignments = 0;
    run_parallel(2, layout.sizes, [&] {
      const int64_t before = experts_group().stats().of(Collective::kAllToAll).bytes;
      const StepResult result = one_step(layout, {});
      bytes += experts_group().stats().of(Collective::kAllToAll).bytes - before;
      if (get_world_group().rank() == 0) {
        for (const auto& [number, layer] : result.moe->layers) {
          for (size_t e = 0; e < layer.tokens_per_expert.size(); ++e) {
            assignments += layer.tokens_per_expert[e] - layer.dropped_per_expert[e];
          }
        }
      }
    });
    const int64_t counts = 2 * 2 * 4 * 8;  // layers, ranks, experts, bytes of a count
    EXPECT_EQ(bytes, 4 * assignments * 32 * 4 + counts);
  }
}

TEST(MixtureTraffic, PaddedIsTheSameInEveryStep) {
  const MixtureLayout layout = {"", 2, {.expert_model_parallel_size = 2}, {}, with_padded_drops, 2};
  run_parallel(2, layout.sizes, [&] {
    const int64_t before = experts_group().stats().of(Collective::kAllToAll).bytes;
    one_step(layout, {});
    const int64_t bytes = experts_group().stats().of(Collective::kAllToAll).bytes - before;
    const int64_t capacity = 6;  // of ceil(16 tokens * 2 / 4 * 0.75)
    EXPECT_EQ(bytes, 2 * (4 * (4 * capacity) * 32 * 4 + 4 * 8));  // two layers
  });
}

// All logits of the first layer's router, moved to one expert.
State to_one_expert(const MixtureLayout& layout) {
  const auto model = get_model(mixture_config(layout.model(), layout.change));
  testing::jitter(*model, 0.05);
  State state = get_logical_state(*model);
  for (const char* layer : {"0", "1"}) {
    // Every token's norm is positive along its bias.
    const Tensor bias = state.at(concat("layers.", layer, ".ffn_norm.bias"));
    const Tensor router = state.at(concat("layers.", layer, ".moe.router.weight"));
    copy_values(full(bias.shape(), 4), bias);
    copy_values(zeros(router.shape()), router);
    for (int64_t h = 0; h < router.size(1); ++h) {
      router.data<float>()[3 * router.size(1) + h] = 0.1F;
      router.data<float>()[2 * router.size(1) + h] = 0.05F;
    }
  }
  return state;
}

TEST(MixtureLayouts, ARankWithoutRowsTakesPart) {
  for (const std::string level : {"null", "z3"}) {
    for (const Overrides& more :
         {Overrides{}, Overrides{"parallel_config.recompute_config=True"}}) {
      MixtureLayout layout = {"", 4, {.expert_model_parallel_size = 2}, joined(zero(level), more)};
      layout.change = nullptr;  // both experts of each token are the second rank's
      const State start = to_one_expert(layout);
      const ModelRun single = train_model(mixture_config(layout.model(), layout.change), start, {});
      run_parallel(layout.ranks, layout.sizes, [&] {
        const ModelRun run = train_model(layout.config(), start, {});
        testing::each_distance(run, single, [&](auto, const std::string& name, double distance) {
          EXPECT_LE(distance, 2e-5) << name << ", " << level;
        });
      });
    }
  }
}

// Tokens that the ranks cannot divide evenly, as they come while text is made.
TEST(MixtureLayouts, AnyNumberOfTokensIsDivided) {
  MixtureLayout layout = {"",
                          4,
                          {
                              .tensor_model_parallel_size = 4,
                              .expert_tensor_parallel_size = 2,
                          }};
  layout.sizes.expert_model_parallel_size = 2;
  const AllConfig whole = mixture_config(layout.model(), with_everything);
  for (const int64_t tokens : {1, 3, 6}) {
    const Tensor x = normal(0, 1, {1, tokens, 32}, kFloat32, RandomKey{3, 1, 0});
    random_context().seed = 7;
    MoELayer one(whole.model_config, 1, false);
    const Tensor expected = one.forward(x).output;
    run_parallel(layout.ranks, layout.sizes, [&] {
      random_context().seed = 7;
      MoELayer layer(layout.config().model_config, 1, false);
      EXPECT_LE(testing::distance(layer.forward(x).output, expected), 1e-6) << tokens;
    });
  }
}

// What is made again in backward is not counted again, and has the same bits.
TEST(MixtureLayouts, RecomputationChangesNothing) {
  for (const char* recompute :
       {"True", "{select_recompute: ['feed_forward\\.mul', 'feed_forward\\.w1\\.activation']}"}) {
    MixtureLayout layout = {"", 1};
    const StepResult expected = one_step(layout, single_run(layout).start);
    layout.overrides = {concat("parallel_config.recompute_config=", recompute)};
    const StepResult found = one_step(layout, single_run(layout).start);
    EXPECT_EQ(found.loss, expected.loss);
    EXPECT_EQ(found.grad_norm, expected.grad_norm);
    EXPECT_EQ(found.moe->aux_loss, expected.moe->aux_loss);
    for (const auto& [number, layer] : expected.moe->layers) {
      EXPECT_EQ(found.moe->layers.at(number).tokens_per_expert, layer.tokens_per_expert);
    }
  }
}

TEST(MixtureLayouts, NanLogitsMakeANonFiniteStepEverywhere) {
  const MixtureLayout layout = {
      "", 4, {.tensor_model_parallel_size = 2, .expert_model_parallel_size = 2}};
  State start = single_run(layout).start;
  Tensor& router = start.at("layers.0.moe.router.weight");
  router = dense_copy(router);
  router.data<float>()[0] = std::numeric_limits<float>::quiet_NaN();
  run_parallel(layout.ranks, layout.sizes, [&] {
    const StepResult result = one_step(layout, start);
    EXPECT_FALSE(result.finite);
  });
}

}  // namespace
}  // namespace tapestry
