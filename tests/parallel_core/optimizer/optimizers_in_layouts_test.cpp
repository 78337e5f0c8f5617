// Every optimizer trains in every layout as it does in one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "parallel_core/parallel_state.h"
#include "parallel_core/pipeline_parallel/collect.h"
#include "tests/parallel_core/made_up_samples.h"
#include "tests/parallel_core/model_families.h"
#include "tests/parallel_core/other_rounding.h"
#include "tests/parallel_core/parallel_testing.h"

namespace tapestry {
namespace {

using testing::joined;
using testing::Overrides;
using testing::small_config;
using testing::State;

const std::string kParallel = "parallel_config.";

struct Layout {
  std::string name;
  int ranks;
  ModelParallelSizes sizes;
  Overrides overrides;
};

// Of eight ranks the last: all at once. Two groups of keys are four ranks' copies.
std::vector<Layout> layouts() {
  const auto zero = [](const char* level) { return Overrides{kParallel + "zero_level=" + level}; };
  const Overrides sequence = {kParallel + "sequence_parallel=True"};
  return {{"tp=2", 2, {.tensor_model_parallel_size = 2}, {}},
          {"tp=4,sp", 4, {.tensor_model_parallel_size = 4}, sequence},
          {"pp=2", 2, {.pipeline_model_parallel_size = 2}, {}},
          {"dp=2", 2, {}, {}},
          {"z1", 2, {}, zero("z1")},
          {"z2", 2, {}, zero("z2")},
          {"z3", 2, {}, zero("z3")},
          {"cp=2,z1", 2, {.context_parallel_size = 2}, zero("z1")},
          {"tp=2,dp=2", 4, {.tensor_model_parallel_size = 2}, {}},
          {"tp=2,pp=2,dp=2,z2",
           8,
           {.tensor_model_parallel_size = 2, .pipeline_model_parallel_size = 2},
           zero("z2")}};
}

AllConfig config_in(const Layout& layout, const Overrides& overrides) {
  const auto size = [](const char* what, int value) {
    return Overrides{concat(kParallel, what, "_parallel_size=", value)};
  };
  return small_config(
      joined({overrides, layout.overrides,
              size("tensor_model", static_cast<int>(layout.sizes.tensor_model_parallel_size)),
              size("pipeline_model", static_cast<int>(layout.sizes.pipeline_model_parallel_size)),
              size("context", static_cast<int>(layout.sizes.context_parallel_size))}));
}

// The weights after three steps, on the ranks that gather them.
State train(const AllConfig& config, int64_t ranks, const State& start = {}) {
  testing::Trainer trainer(config, start);
  testing::MadeUpSamples samples(config);
  const int64_t rank = ranks > 1 ? get_data_parallel_rank() : 0;
  for (int64_t step = 0; step < 3; ++step) {
    std::vector<data::Batch> batches;
    for (int64_t m = 0; m < 2 / ranks; ++m) {
      batches.push_back(samples.micro_batch({step, 4 * step}, m, 2 / ranks, 2, rank, ranks));
    }
    trainer.cell(batches);
  }
  return gather_over_pipeline(get_logical_state(*trainer.model, trainer.optimizer.get()));
}

Overrides optimizer(const std::string& type, const Overrides& more = {}) {
  return joined({"optimizer_config.optimizer_type=" + type, "optimizer_config.weight_decay=0.1",
                 "optimizer_config.clip_grad=1.0"},
                more);
}

// With rotation no bias has a gradient of nothing but rounding.
Overrides gpt() { return {"model_config.position_embedding_type=rope"}; }

// Queries, keys and values of latent vectors.
Overrides latent() {
  return {"model_config.position_embedding_type=rope",
          "model_config.normalization=RMSNorm",
          "model_config.hidden_act=swiglu",
          "model_config.add_bias_linear=False",
          testing::kUntied,
          "model_config.multi_latent_attention=True",
          "model_config.kv_lora_rank=12",
          "model_config.qk_head_dim=6",
          "model_config.qk_pos_emb_head_dim=4",
          "model_config.v_head_dim=8"};
}

class InLayouts : public ::testing::TestWithParam<Overrides> {
 protected:
  template <class Check>
  void for_layouts(const Check& check) {
    for (const Layout& layout : layouts()) {
      SCOPED_TRACE(layout.name);
      const AllConfig config = config_in(layout, GetParam());
      testing::run_parallel(layout.ranks, layout.sizes, [&] {
        const State found = train(config, get_data_parallel_world_size());
        if (!found.empty() && get_data_parallel_rank() == 0) {
          check(found);
        }
      });
    }
  }
};

TEST_P(InLayouts, WeightsAreThoseOfOneProcess) {
  const AllConfig one = small_config(GetParam());
  const State expected = train(one, 1);
  double spread = 0;
  testing::with_other_rounding(
      get_logical_state(*get_model(one)), one.model_config.compute_dtype,
      [&](const State& start) { return train(one, 1, start); },
      [&](const State& again) {
        spread = std::max(spread, testing::largest_distance(again, expected));
      });
  ASSERT_LT(spread, 1e-3);
  for_layouts([&](const State& found) {
    testing::expect_states_close(found, expected, testing::bound_of_spread(spread));
  });
}

INSTANTIATE_TEST_SUITE_P(
    Optimizers,
    InLayouts,
    ::testing::Values(
        joined(gpt(), optimizer("Came")),
        testing::llama(optimizer("Came",
                                 {"optimizer_config.scale_parameter=True", testing::kUntied})),
        joined(gpt(), optimizer("Adafactor", {"optimizer_config.scale_parameter=True"})),
        testing::llama(optimizer("Adafactor", {"optimizer_config.momentum=0.9"})),
        // AdamW, which keeps the biases, makes whole steps out of gradients that are hardly there.
        joined(gpt(),
               optimizer("Muon",
                         {"optimizer_config.ns_dtype=float32", "model_config.qkv_has_bias=False"})),
        testing::llama(optimizer("Muon",
                                 {"optimizer_config.ns_dtype=float32", testing::kUntied,
                                  "optimizer_config.adamw_learning_rate=0.003"})),
        // Matrices of several ones, by turns of rows, that ranks divide by heads.
        joined(latent(), optimizer("Muon", {"optimizer_config.ns_dtype=float32"})),
        joined({latent(),
                {"model_config.q_lora_rank=16"},
                optimizer("Muon",
                          {"optimizer_config.ns_dtype=float32",
                           "optimizer_config.ns_coefficients=[[[3.4445, -4.775, 2.0315], 3], "
                           "[[2.0, -1.5, 0.5], 1]]",
                           "optimizer_config.adamw_include=['*output_layer*']",
                           "optimizer_config.weight_decay_include=['*layernorm*']",
                           "optimizer_config.weight_decay_exclude=[linear_qb, '*fc2*', "
                           "word_embeddings]"})}),
        // Scores of these weights are far above the threshold.
        testing::llama(optimizer("Muon",
                                 {"optimizer_config.ns_dtype=float32", testing::kUntied,
                                  "model_config.init_method_std=0.3",
                                  "optimizer_config.qk_clip_enabled=True",
                                  "optimizer_config.qk_clip_threshold=0.5"}))));

using LionInLayouts = InLayouts;

// A sum that rounding moves across zero turns a step of Lion's round: few may.
TEST_P(LionInLayouts, WeightsAreThoseOfOneProcessButForFew) {
  const State expected = train(small_config(GetParam()), 1);
  for_layouts([&](const State& found) {
    ASSERT_EQ(found.size(), expected.size());
    int64_t elements = 0;
    int64_t others = 0;
    for (const auto& [name, tensor] : expected) {
      const std::vector<float> a = found.at(name).to_vector<float>();
      const std::vector<float> b = tensor.to_vector<float>();
      for (size_t i = 0; i < b.size(); ++i) {
        ++elements;
        others += std::abs(a[i] - b[i]) <= 1e-5 ? 0 : 1;
      }
    }
    EXPECT_LE(others, elements / 1000);
  });
}

INSTANTIATE_TEST_SUITE_P(Optimizers,
                         LionInLayouts,
                         ::testing::Values(joined(gpt(), optimizer("Lion"))));

TEST(MuonGroups, MatricesAndTheRest) {
  const AllConfig config = small_config(
      optimizer("Muon", {testing::kUntied, "optimizer_config.adamw_learning_rate=0.002"}));
  const auto model = get_model(config);
  const auto muon = get_optimizer(config, *model);
  const auto schedule = get_optimizer_param_scheduler(config, 1);
  schedule->apply(*muon, {});
  ASSERT_EQ(muon->param_groups().size(), 3U);
  size_t matrices = 0;
  for (const optim::ParamGroup& group : muon->param_groups()) {
    EXPECT_DOUBLE_EQ(group.lr.value(), group.adamw ? 0.002 : 0.01);
    for (const std::string& name : group.names) {
      const bool is_layer_weight = name.find("layers.") != std::string::npos &&
                                   name.find("weight") != std::string::npos &&
                                   name.find("norm") == std::string::npos;
      EXPECT_EQ(is_layer_weight, !group.adamw) << name;
      matrices += is_layer_weight ? 1 : 0;
    }
  }
  EXPECT_EQ(matrices, 8U);
}

}  // namespace
}  // namespace tapestry
