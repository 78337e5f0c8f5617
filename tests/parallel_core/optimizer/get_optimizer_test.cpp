#include "parallel_core/optimizer/get_optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "autograd/tensor/error.h"
#include "parallel_core/dist_checkpointing/logical_state.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace {

using testing::Overrides;
using testing::small_config;

const std::string kOptimizer = "optimizer_config.";

TEST(GetParamGroups, EveryParameterOnceByItsFlag) {
  const auto model = get_model(small_config());
  const std::vector<optim::ParamGroup> groups = get_param_groups(*model, 0.1);
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].weight_decay, 0.1);
  EXPECT_EQ(groups[0].wd_mult, 1);
  EXPECT_EQ(groups[1].weight_decay, 0);
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

TEST(GetOptimizer, ByName) {
  const auto model = get_model(small_config());
  for (const std::string name : {"AdamW", "Adam", "SGD"}) {
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
