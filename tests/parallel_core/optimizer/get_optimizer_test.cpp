#include "parallel_core/optimizer/get_optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "autograd/tensor/error.h"
#include "parallel_core/dist_checkpointing/logical_state.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/pipeline_parallel/collect.h"
#include "tests/parallel_core/made_up_samples.h"
#include "tests/parallel_core/other_rounding.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace {

using testing::Overrides;
using testing::small_config;
using testing::State;

const std::string kOptimizer = "optimizer_config.";

TEST(GetParamGroups, EveryParameterOnceByItsFlag) {
  const auto model = get_model(small_config());
  const std::vector<optim::ParamGroup> groups = get_param_groups(*model, 0.1);
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].weight_decay, 0.1);
  EXPECT_EQ(groups[0].wd_mult, 1);
  EXPECT_EQ(groups[1].weight_decay, std::nullopt);
  EXPECT_EQ(groups[1].wd_mult, 0);
  std::set<std::string> decayed(groups[0].names.begin(), groups[0].names.end());
  std::set<std::string> exempt(groups[1].names.begin(), groups[1].names.end());
  EXPECT_EQ(decayed.size() + exempt.size(), model->named_parameters().size());
  for (const auto& entry : model->named_parameters()) {
    EXPECT_EQ(decayed.contains(entry.name), entry.parameter->flags().decay) << entry.name;
    EXPECT_EQ(exempt.contains(entry.name), !entry.parameter->flags().decay) << entry.name;
  }
  for (const optim::ParamGroup& group : groups) {
    ASSERT_EQ(group.names.size(), group.params.size());
  }
}

TEST(GetParamGroups, AnEmptyGroupIsLeftOut) {
  const auto model = get_model(small_config());
  for (const auto& entry : model->named_parameters()) {
    nn::ParameterFlags flags = entry.parameter->flags();
    flags.decay = false;
    entry.parameter->set_flags(flags);
  }
  EXPECT_EQ(get_param_groups(*model, 0.1).size(), 1U);
}

// Gains and biases; tables; the rest, at a tenth of the rate.
std::vector<optim::ParamGroup> own_groups(const nn::Module& model) {
  std::vector<optim::ParamGroup> groups(3);
  groups[0].wd_mult = 0;
  groups[1].wd_mult = 0.5;
  groups[2].lr_mult = 0.1;
  for (const auto& [name, parameter] : model.named_parameters()) {
    const bool table = name.find("embedding") != std::string::npos;
    groups[table ? 1 : parameter->flags().decay ? 2 : 0].params.push_back(*parameter);
  }
  return groups;
}

const Overrides kDecay = {kOptimizer + "weight_decay=0.2", kOptimizer + "learning_rate=0.01"};

TEST(GetOptimizer, OwnGroupsScaleTheSchedule) {
  testing::Trainer plain(small_config(kDecay));
  const AllConfig config = small_config(kDecay);
  const auto model = get_model(config);
  const auto optimizer = get_optimizer(config, *model, own_groups(*model));
  const auto schedule = get_optimizer_param_scheduler(config, 1);
  TrainOneStepCell cell(*model, *optimizer, *schedule, config);
  const std::vector<data::Batch> batches = {testing::make_batch(config, 2)};
  const auto before = get_logical_state(*model);
  const StepResult result = cell(batches);
  plain.cell(batches);
  ASSERT_EQ(result.lr.size(), 3U);
  EXPECT_DOUBLE_EQ(result.lr[0], 0.01);
  EXPECT_DOUBLE_EQ(result.lr[2], 0.001);
  EXPECT_DOUBLE_EQ(optimizer->param_groups()[1].weight_decay.value(), 0.1);
  const auto own = get_logical_state(*model);
  const auto usual = get_logical_state(*plain.model);
  // AdamW is linear in its rate: a tenth of the usual step, decay included.
  const std::string matrix = "layers.0.attention.wo.weight";
  const Tensor step = own.at(matrix) - before.at(matrix);
  EXPECT_LE(testing::distance(step * 10, usual.at(matrix) - before.at(matrix)), 1e-4);
  const std::string gain = "layers.0.ffn_norm.weight";
  EXPECT_TRUE(testing::same_bits(own.at(gain), usual.at(gain)));
  EXPECT_GT(testing::largest(own.at("tok_embeddings.weight") - usual.at("tok_embeddings.weight")),
            0);
}

// Groups as PyTorch's users write them: a weight_decay of 0.0 is none, and stays so.
TEST(GetOptimizer, AWeightDecayOfZeroIsNone) {
  testing::Trainer plain(small_config(kDecay));
  const AllConfig config = small_config(kDecay);
  const auto model = get_model(config);
  std::vector<optim::ParamGroup> groups(2);
  groups[0].weight_decay = 0.2;
  groups[1].weight_decay = 0.0;
  for (const auto& [name, parameter] : model->named_parameters()) {
    groups[parameter->flags().decay ? 0 : 1].params.push_back(*parameter);
  }
  const auto optimizer = get_optimizer(config, *model, groups);
  const auto schedule = get_optimizer_param_scheduler(config, 1);
  TrainOneStepCell cell(*model, *optimizer, *schedule, config);
  const std::vector<data::Batch> batches = {testing::make_batch(config, 2)};
  for (int step = 0; step < 2; ++step) {
    cell(batches);
    plain.cell(batches);
  }
  EXPECT_EQ(optimizer->param_groups()[0].weight_decay, 0.2);
  EXPECT_EQ(optimizer->param_groups()[1].weight_decay, 0);
  const auto usual = get_logical_state(*plain.model);
  for (const auto& [name, value] : get_logical_state(*model)) {
    EXPECT_TRUE(testing::same_bits(value, usual.at(name))) << name;
  }
}

// With and without stages, whole and in pieces.
TEST(GetOptimizer, OwnGroupsInEveryLayout) {
  const auto weights = [](const AllConfig& config, int64_t ranks, const State& start = {}) {
    const auto model = get_model(config);
    if (!start.empty()) {
      set_logical_state(*model, start, "test");
    }
    const auto data_parallel = get_data_parallel(config, *model);
    const auto optimizer = get_optimizer(config, *model, own_groups(*model), data_parallel.get());
    EXPECT_EQ(optimizer->param_groups().size(), 3U);
    const auto schedule = get_optimizer_param_scheduler(config, ranks);
    TrainOneStepCell cell(*model, *optimizer, *schedule, config, data_parallel.get());
    testing::MadeUpSamples samples(config);
    const int64_t rank = ranks > 1 ? get_data_parallel_rank() : 0;
    for (int64_t step = 0; step < 2; ++step) {
      std::vector<data::Batch> batches;
      for (int64_t m = 0; m < 2 / ranks; ++m) {
        batches.push_back(samples.micro_batch({step, 4 * step}, m, 2 / ranks, 2, rank, ranks));
      }
      cell(batches);
    }
    return gather_over_pipeline(get_logical_state(*model, optimizer.get()));
  };
  // With rotation no bias has a gradient of nothing but rounding.
  const Overrides two = testing::joined(kDecay, {"model_config.position_embedding_type=rope"});
  const AllConfig one = small_config(two);
  const auto expected = weights(one, 1);
  double spread = 0;
  testing::with_other_rounding(
      get_logical_state(*get_model(one)), one.model_config.compute_dtype,
      [&](const State& start) { return weights(one, 1, start); },
      [&](const State& again) {
        spread = std::max(spread, testing::largest_distance(again, expected));
      });
  for (const char* level : {"z1", "z2", "z3"}) {
    const AllConfig config =
        small_config(testing::joined(two, {std::string("parallel_config.zero_level=") + level,
                                           "parallel_config.pipeline_model_parallel_size=2"}));
    testing::run_parallel(4, {.pipeline_model_parallel_size = 2}, [&] {
      const auto found = weights(config, 2);
      if (!found.empty() && get_data_parallel_rank() == 0) {
        testing::expect_states_close(found, expected, testing::bound_of_spread(spread));
      }
    });
  }
}

TEST(GetOptimizer, BadGroups) {
  const AllConfig config = small_config(kDecay);
  const auto model = get_model(config);
  const auto refused = [&](const std::function<void(std::vector<optim::ParamGroup>&)>& change) {
    auto groups = own_groups(*model);
    change(groups);
    try {
      get_optimizer(config, *model, groups);
    } catch (const ValueError& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  using ::testing::HasSubstr;
  EXPECT_EQ(refused([](auto& /*groups*/) {}), "none");
  EXPECT_EQ(refused([](auto& groups) { groups.emplace_back(); }), "none");
  EXPECT_THAT(refused([](auto& groups) { groups[0].params.pop_back(); }),
              HasSubstr("' is in none of them"));
  EXPECT_THAT(refused([](auto& groups) { groups[1].params.push_back(groups[2].params[0]); }),
              HasSubstr("is in group 1 already"));
  EXPECT_THAT(refused([](auto& groups) { groups[1].params.push_back(ones({2})); }),
              HasSubstr("param group 1: holds a tensor float32 [2] that is no parameter"));
  EXPECT_THAT(refused([](auto& groups) { groups[2].lr = 0.5; }),
              HasSubstr("param group 2: lr 0.5 would be overwritten"));
  EXPECT_THAT(refused([](auto& groups) { groups[2].lr = 0.0; }),
              HasSubstr("param group 2: lr 0 would be overwritten"));
  EXPECT_THAT(refused([](auto& groups) { groups[2].weight_decay = 0.5; }),
              HasSubstr("param group 2: weight_decay 0.5 would be overwritten"));
}

TEST(GetOptimizer, ByName) {
  const auto model = get_model(small_config());
  for (const std::string name : {"AdamW", "Adam", "SGD", "Lion", "Came", "Adafactor", "Muon"}) {
    const AllConfig config =
        small_config({kOptimizer + "optimizer_type=" + name, kOptimizer + "learning_rate=0.25"});
    const auto optimizer = get_optimizer(config, *model);
    EXPECT_EQ(optimizer->type_name(), name);
    for (const optim::ParamGroup& group : optimizer->param_groups()) {
      EXPECT_EQ(group.lr, 0.25);
    }
  }
  AllConfig config;
  config.optimizer_config.optimizer_type = "Rprop";
  EXPECT_THAT([&] { get_optimizer(config, *model); },
              ::testing::ThrowsMessage<ValueError>(::testing::HasSubstr("Rprop")));
}

TEST(GetOptimizer, DecayReachesOnlyItsGroup) {
  // Weights alone: with a gradient of zero AdamW only decays.
  testing::Trainer trainer({kOptimizer + "weight_decay=0.5", kOptimizer + "learning_rate=0.1"});
  testing::jitter(*trainer.model);
  const auto before = get_logical_state(*trainer.model);
  data::Batch batch = testing::make_batch(trainer.config, 1);
  batch.loss_mask.assign(batch.loss_mask.size(), 0.0F);
  trainer.cell({batch});
  for (const auto& [name, tensor] : get_logical_state(*trainer.model)) {
    const bool exempt =
        name.find("norm") != std::string::npos || name.find("bias") != std::string::npos;
    EXPECT_LE(testing::distance(tensor, before.at(name) * (exempt ? 1.0 : 0.95)), 1e-6) << name;
  }
}

TEST(GetGradScaler, StaticDynamicOrNone) {
  EXPECT_EQ(get_grad_scaler(small_config()).scale(), 1);
  const optim::GradScaler fixed = get_grad_scaler(small_config({"training_config.loss_scale=256"}));
  EXPECT_EQ(fixed.scale(), 256);
  EXPECT_FALSE(fixed.is_dynamic());
  const optim::GradScaler dynamic = get_grad_scaler(small_config(
      {"training_config.fp16=True", "training_config.loss_scale_value=1024",
       "training_config.loss_scale_factor=4", "training_config.loss_scale_window=10"}));
  EXPECT_EQ(dynamic.scale(), 1024);
  EXPECT_TRUE(dynamic.is_dynamic());
}

TEST(GetOptimizerParamScheduler, EachFamily) {
  const auto rate = [](const Overrides& overrides, int64_t step) {
    return get_optimizer_param_scheduler(small_config(overrides), 1)
        ->learning_rate({.applied = step, .seen = step});
  };
  EXPECT_EQ(rate({}, 7), 0.01);
  const Overrides cosine = {kOptimizer + "lr_decay_style=cosine", kOptimizer + "min_lr=0.001",
                            "dataset_config.batch_size=3"};
  EXPECT_NEAR(rate(cosine, 10), 0.0055, 1e-12);
  EXPECT_NEAR(rate(cosine, 20), 0.001, 1e-12);
  const Overrides kwargs = {kOptimizer +
                            "learning_rate_scheduler_kwargs={warmup_steps: 4, decay_steps: 20, "
                            "end_learning_rate: 0.0, use_cosine: False}"};
  EXPECT_NEAR(rate(kwargs, 2), 0.005, 1e-12);
  EXPECT_NEAR(rate(kwargs, 10), 0.005, 1e-12);
  EXPECT_EQ(rate({"training_config.training_iters=0", "training_config.epochs=1"}, 1000), 0.01);
}

}  // namespace
}  // namespace tapestry
