// Evaluation, files and checkpoints of runs that divide sequences, against those of one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "autograd/tensor/error.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/dist_checkpointing/logical_state.h"
#include "parallel_core/pipeline_parallel/collect.h"
#include "tests/diagnosis/watched_train.h"
#include "tests/parallel_core/made_up_samples.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/small_model.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace run_test {
namespace {

using testing::MadeUpSamples;
using testing::Overrides;
using testing::State;

const std::string kModel = "model_config.";
const std::string kParallel = "parallel_config.";

struct Layout {
  const char* name = "";
  int context = 1;
  int tensor = 1;
  int pipeline = 1;
  int data = 1;
  Overrides overrides;

  int ranks() const { return context * tensor * pipeline * data; }
};

void PrintTo(const Layout& layout, std::ostream* out) { *out << layout.name; }

AllConfig config_of(const Layout& layout, const Overrides& more = {}) {
  const Overrides overrides = {
      kModel + "seq_length=16",
      kModel + "hidden_dropout=0.1",
      kModel + "num_attention_heads=4",
      kModel + "group_query_attention=True",
      kModel + "num_query_groups=2",
      kModel + "position_embedding_type=rope",
      "dataset_config.batch_size=2",
      concat("dataset_config.micro_batch_num=", 4 / layout.data),
      concat(kParallel, "context_parallel_size=", layout.context),
      concat(kParallel, "tensor_model_parallel_size=", layout.tensor),
      concat(kParallel, "pipeline_model_parallel_size=", layout.pipeline),
  };
  return testing::small_config(testing::joined({overrides, layout.overrides, more}));
}

// Runs `body` on the ranks of the layout.
void run(const Layout& layout, const std::function<void()>& body) {
  testing::run_parallel(layout.ranks(),
                        {.tensor_model_parallel_size = layout.tensor,
                         .pipeline_model_parallel_size = layout.pipeline,
                         .context_parallel_size = layout.context},
                        body);
}

const Layout kLayouts[] = {
    {"Two", 2, 1, 1, 1, {}},
    {"FourSbh", 4, 1, 1, 1, {"dataset_config.data_layout=SBH"}},
    {"TwoTimesTwoTensor", 2, 2, 1, 1, {}},
    {"SequenceParallel", 2, 2, 1, 1, {kParallel + "sequence_parallel=True"}},
    {"RanksThatShareAGroup",
     2,
     4,
     1,
     1,
     {kParallel + "sequence_parallel=True", "dataset_config.data_layout=SBH"}},
    {"TwoStages", 2, 1, 2, 1, {}},
    {"TwoTimesTwoData", 2, 1, 1, 2, {"training_config.use_distributed_optimizer=True"}},
    {"OfEach", 2, 2, 2, 2, {kParallel + "sequence_parallel=True", kParallel + "zero_level=z2"}},
};

class ContextParallelRun : public ::testing::TestWithParam<Layout> {
 protected:
  data::TempDir dir_;
};

TEST_P(ContextParallelRun, EvaluationIsThatOfOneProcess) {
  const auto losses_of = [](const Layout& layout) {
    std::vector<double> losses(static_cast<size_t>(layout.ranks()));
    run(layout, [&] {
      const AllConfig config = config_of(layout);
      const auto model = get_model(config);
      MadeUpSamples source(config);
      losses[static_cast<size_t>(get_world_group().rank())] = evaluate(*model, source, config, 2);
    });
    return losses;
  };
  const double expected = losses_of({})[0];
  EXPECT_THAT(losses_of(GetParam()), ::testing::Each(::testing::DoubleNear(expected, 1e-5)));
}

TEST_P(ContextParallelRun, TheLoopWritesTheFilesOfOneProcess) {
  const auto files_of = [&](const Layout& layout, const std::string& folder) {
    std::filesystem::create_directories(folder);
    run(layout, [&] {
      const AllConfig config = config_of(
          layout,
          {"training_config.output_dir=" + folder, "training_config.training_iters=2",
           "training_config.dump_activation_steps=[1]", "training_config.dump_grad_steps=[1]",
           "training_config.dump_weight_steps=[2]", "optimizer_config.eps=0.001"});
      testing::Trainer trainer(config);
      MadeUpSamples source(config);
      EXPECT_EQ(testing::watched_train(trainer.cell, source, config, {}).steps, 2);
    });
  };
  const std::string split = dir_.path() + "/split";
  const std::string whole = dir_.path() + "/whole";
  files_of(GetParam(), split);
  files_of({}, whole);
  for (const char* name : {"acts_step_1", "grads_step_1", "weights_step_2"}) {
    SCOPED_TRACE(name);
    const std::string file = std::string("/") + name + ".safetensors";
    testing::expect_states_close(read_weights(split + file), read_weights(whole + file), 1e-4);
  }
}

TEST_P(ContextParallelRun, CheckpointsAreThoseOfOneProcess) {
  const auto trained = [](const Layout& layout, const std::string& folder) {
    run(layout, [&] {
      const AllConfig config =
          config_of(layout, {"training_config.training_iters=2", "optimizer_config.eps=0.001",
                             "training_config.save_interval=2"});
      testing::Trainer trainer(config);
      MadeUpSamples source(config);
      testing::watched_train(trainer.cell, source, config, {.checkpoint = {.directory = folder}});
    });
  };
  const auto weights_in = [](const std::string& folder) {
    const AllConfig config = config_of({});
    const auto model = get_model(config);
    load_weights(*model, config.model_config, folder);
    return get_logical_state(*model);
  };
  const std::string split = dir_.path() + "/split";
  const std::string whole = dir_.path() + "/whole";
  trained(GetParam(), split);
  trained({}, whole);
  testing::expect_states_close(weights_in(split), weights_in(whole), 1e-4);
  const State expected = weights_in(whole);
  run(GetParam(), [&] {
    const AllConfig config = config_of(GetParam());
    const auto loaded = get_model(config);
    load_weights(*loaded, config.model_config, whole);
    const State all = gather_over_pipeline(get_logical_state(*loaded));
    if (get_tensor_model_parallel_rank() == 0 && get_pipeline_model_parallel_rank() == 0) {
      testing::expect_states_equal(all, expected);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts,
                         ContextParallelRun,
                         ::testing::ValuesIn(kLayouts),
                         [](const auto& info) { return info.param.name; });

TEST(ContextParallelRunInput, SequencesThatCannotBeDividedAreNamed) {
  testing::run_parallel(2, {.context_parallel_size = 2}, [] {
    const AllConfig config = testing::small_config({kParallel + "context_parallel_size=2"});
    const auto model = get_model(config);
    EXPECT_EQ(model->sequence_unit(), 4);
    EXPECT_EQ(model->hidden_shape(3, 8), (Shape{3, 4, 32}));
    EXPECT_EQ(model->hidden_shape(3, 5), (Shape{3, 4, 32}));  // text is filled up
    data::Batch batch = testing::make_batch(config, 1);
    batch.seq = 6;
    for (auto* values : {&batch.tokens, &batch.labels}) {
      values->resize(6);
    }
    batch.loss_mask.resize(6);
    EXPECT_THROW(to_model_input(batch, model->sequence_unit()), ValueError);
    EXPECT_THROW(to_model_input(batch), ValueError);
  });
}

}  // namespace
}  // namespace run_test
}  // namespace tapestry
