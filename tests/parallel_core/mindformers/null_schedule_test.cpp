// A step without a schedule: groups keep what they were given, and a program saves and goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/dist_checkpointing/training_state_file.h"
#include "parallel_core/optimizer/schedule_state.h"
#include "parallel_core/training/training.h"
#include "tests/parallel_core/made_up_samples.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/small_model.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace {

using ::testing::ElementsAre;
using testing::Overrides;
using testing::small_config;
using testing::State;

// A model whose norms and biases learn at half the rate and do not decay.
struct Program {
  explicit Program(const AllConfig& settings)
      : config(settings),
        model(get_model(config)),
        data_parallel(get_data_parallel(config, *model)),
        optimizer(get_optimizer(config, *model, groups(*model), data_parallel.get())),
        cell(*model, *optimizer, nullptr, config, data_parallel.get()),
        samples(config) {}

  static std::vector<optim::ParamGroup> groups(const nn::Module& model) {
    std::vector<optim::ParamGroup> all = {{.weight_decay = 0.1},
                                          {.weight_decay = 0.0, .lr_mult = 0.5}};
    for (const auto& [name, parameter] : model.named_parameters()) {
      all[parameter->flags().decay ? 0 : 1].params.push_back(*parameter);
    }
    return all;
  }
  StepResult step() {
    const int64_t number = cell.position().seen;
    return cell({samples.micro_batch({number, 2 * number}, 0, 1, 2, 0, 1)});
  }

  AllConfig config;
  std::unique_ptr<GPTModel> model;
  std::unique_ptr<DistributedDataParallel> data_parallel;
  std::unique_ptr<optim::Optimizer> optimizer;
  TrainOneStepCell cell;
  testing::MadeUpSamples samples;
};

// A schedule that the configuration asks for is nobody's concern here.
const Overrides kConfigured = {"optimizer_config.weight_decay=0.1",
                               "optimizer_config.lr_decay_style=cosine"};

TEST(NullSchedule, GroupsKeepTheirValues) {
  Program program(small_config(kConfigured));
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(program.step().lr, ElementsAre(0.01, 0.005));
  }
  EXPECT_EQ(program.optimizer->param_groups()[0].weight_decay, 0.1);
  EXPECT_EQ(program.optimizer->param_groups()[1].weight_decay, 0.0);
  program.optimizer->param_groups()[0].lr = 0.02;  // the program's own affair
  EXPECT_THAT(program.step().lr, ElementsAre(0.02, 0.005));
}

// A constant schedule that gives the same values makes the same bits.
TEST(NullSchedule, IsAsAConstantOne) {
  Program program(small_config(kConfigured));
  Program other(small_config(kConfigured));
  const optim::ConstantSchedule constant(0.01, 0.1);
  TrainOneStepCell cell(*other.model, *other.optimizer, constant, other.config);
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(program.step().loss,
              cell({other.samples.micro_batch({i, 2 * i}, 0, 1, 2, 0, 1)}).loss);
  }
  testing::expect_states_equal(get_logical_state(*program.model), get_logical_state(*other.model));
}

TEST(NullSchedule, AProgramSavesAndGoesOnBitForBit) {
  for (const char* level : {"", "parallel_config.zero_level=z1"}) {
    const bool sharded = *level != '\0';
    const AllConfig config =
        small_config(sharded ? testing::joined(kConfigured, {level}) : kConfigured);
    const data::TempDir dir;
    testing::run_parallel(sharded ? 2 : 1, {}, [&] {
      Program whole(config);
      std::vector<double> losses;
      for (int i = 0; i < 6; ++i) {
        losses.push_back(whole.step().loss);
      }
      Program first(config);
      for (int i = 0; i < 3; ++i) {
        first.step();
      }
      const std::string folder = save_checkpoint(
          *first.model, config.model_config, 3,
          {.directory = dir.file("checkpoint"), .training_state = "{}"}, first.optimizer.get());
      Program second(config);
      load_weights(*second.model, config.model_config, folder);
      load_optimizer_state(folder, *second.model, *second.optimizer);
      second.cell.set_position({.applied = 3, .seen = 3});
      for (size_t i = 3; i < losses.size(); ++i) {
        const StepResult result = second.step();
        EXPECT_EQ(result.loss, losses[i]) << i << " " << level;
        EXPECT_THAT(result.lr, ElementsAre(0.01, 0.005));
      }
      testing::expect_states_equal(get_logical_state(*second.model),
                                   get_logical_state(*whole.model));
    });
  }
}

// The same through the loop, whose checkpoints say that there is no schedule.
TEST(NullSchedule, TheLoopSavesAndGoesOn) {
  const data::TempDir dir;
  const AllConfig config = small_config(testing::joined(
      kConfigured, {"training_config.save_interval=3", "dataset_config.batch_size=2",
                    "training_config.training_iters=6"}));
  const auto options = [&](const char* folder, int64_t steps) {
    return TrainOptions{.checkpoint = {.directory = dir.file(folder)},
                        .total_steps = steps,
                        .trainer = TrainerState{}};
  };
  testing::run_parallel(1, {}, [&] {
    Program whole(config);
    const TrainSummary expected = train(whole.cell, whole.samples, config, options("whole", 6));
    Program first(config);
    train(first.cell, first.samples, config, options("parts", 3));
    const std::string folder = dir.file("parts/step_00000003");
    const TrainerState trainer = parse_trainer_state(read_training_state(folder), folder);
    EXPECT_EQ(trainer.schedule, "");
    Program second(config);
    load_weights(*second.model, config.model_config, folder);
    load_optimizer_state(folder, *second.model, *second.optimizer);
    second.cell.set_position(trainer.position);
    EXPECT_EQ(train(second.cell, second.samples, config, options("parts", 6)).last_loss,
              expected.last_loss);
    // A run of the library that goes on with it has a schedule again, and says so.
    const ResumedSchedule resumed = resume_schedule(config, 1, trainer.schedule, folder);
    EXPECT_THAT(resumed.remark, ::testing::HasSubstr("trained without"));
    EXPECT_EQ(resumed.state, schedule_state(config, 1));
  });
}

}  // namespace
}  // namespace tapestry
