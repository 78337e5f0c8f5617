// What surrounds the steps of a run in a pipeline: evaluation, generation, files, schedules' order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/inference/generation.h"
#include "parallel_core/pipeline_parallel/collect.h"
#include "tests/diagnosis/watched_train.h"
#include "tests/parallel_core/made_up_samples.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/small_model.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace {

using testing::MadeUpSamples;
using testing::Overrides;
using testing::State;

const std::string kModel = "model_config.";

struct Layout {
  const char* name = "";
  int stages = 1;
  int chunks = 1;
  Overrides overrides;
};

void PrintTo(const Layout& layout, std::ostream* out) { *out << layout.name; }

AllConfig config_of(const Layout& layout) {
  Overrides overrides =
      testing::joined({kModel + "num_layers=6", kModel + "hidden_dropout=0.1",
                       "dataset_config.batch_size=2", "dataset_config.micro_batch_num=3"},
                      layout.overrides);
  overrides.push_back("parallel_config.pipeline_model_parallel_size=" +
                      std::to_string(layout.stages));
  if (layout.chunks > 1) {
    overrides.push_back("parallel_config.virtual_pipeline_model_parallel_size=" +
                        std::to_string(layout.chunks));
  }
  return testing::small_config(overrides);
}

// Runs `body` on the ranks of the layout.
void run(const Layout& layout, const std::function<void(const AllConfig& config)>& body) {
  ModelParallelSizes sizes{.pipeline_model_parallel_size = layout.stages};
  if (layout.chunks > 1) {
    sizes.virtual_pipeline_model_parallel_size = layout.chunks;
  }
  testing::run_parallel(layout.stages, sizes, [&] { body(config_of(layout)); });
}

Layout one_process(const Layout& layout) { return {"", 1, 1, layout.overrides}; }

const Layout kLayouts[] = {
    {"TwoStages", 2, 1, {}},
    {"Interleaved", 2, 3, {"dataset_config.data_layout=SBH"}},
    {"FourUntied", 4, 1, {kModel + "untie_embeddings_and_output_weights=True"}},
};

class PipelineRun : public ::testing::TestWithParam<Layout> {
 protected:
  data::TempDir dir_;
};

TEST_P(PipelineRun, EvaluationIsThatOfOneProcess) {
  const auto loss_of = [](const Layout& layout) {
    std::vector<double> losses(static_cast<size_t>(layout.stages));
    run(layout, [&](const AllConfig& config) {
      const auto model = get_model(config);
      MadeUpSamples source(config);
      losses[static_cast<size_t>(get_pipeline_model_parallel_rank())] =
          evaluate(*model, source, config, 2);
      EXPECT_TRUE(model->is_training());
    });
    EXPECT_THAT(losses, ::testing::Each(losses[0]));
    return losses[0];
  };
  const double expected = loss_of(one_process(GetParam()));
  EXPECT_NEAR(loss_of(GetParam()), expected, 1e-6 * expected);
}

TEST_P(PipelineRun, GenerationIsThatOfOneProcess) {
  const auto text_of = [](const Layout& layout) {
    std::vector<std::vector<int32_t>> texts(static_cast<size_t>(layout.stages));
    run(layout, [&](const AllConfig& config) {
      const auto model = get_model(config);
      texts[static_cast<size_t>(get_pipeline_model_parallel_rank())] =
          generate(*model, std::array<int32_t, 3>{3, 1, 4},
                   {.max_new_tokens = 12, .temperature = 0.8, .seed = 5, .max_context = 8});
    });
    EXPECT_THAT(texts, ::testing::Each(texts[0]));
    return texts[0];
  };
  EXPECT_EQ(text_of(GetParam()), text_of(one_process(GetParam())));
}

TEST_P(PipelineRun, CheckpointsAreThoseOfOneProcess) {
  const std::string folder = dir_.path() + "/split";
  State before;
  run(GetParam(), [&](const AllConfig& config) {
    const auto model = get_model(config);
    testing::jitter(*model);
    save_checkpoint(*model, config.model_config, 3,
                    {.directory = folder, .resolved_config = "a: 1"});
    State all = gather_over_pipeline(get_logical_state(*model));
    if (get_pipeline_model_parallel_rank() == 0) {
      before = std::move(all);
    }
  });
  run(one_process(GetParam()), [&](const AllConfig& config) {  // loads what the stages saved
    const auto model = get_model(config);
    load_weights(*model, config.model_config, folder);
    testing::expect_states_equal(get_logical_state(*model), before);
    save_checkpoint(*model, config.model_config, 4,
                    {.directory = dir_.path() + "/whole", .resolved_config = "a: 1"});
  });
  const std::string whole = dir_.path() + "/whole/step_00000004/model.safetensors";
  const State file = read_weights(folder + "/step_00000003/model.safetensors");
  testing::expect_states_equal(file, read_weights(whole));
  run(GetParam(), [&](const AllConfig& config) {  // and the stages load what one process saved
    const auto model = get_model(config);
    load_weights(*model, config.model_config, dir_.path() + "/whole");
    const State all = gather_over_pipeline(get_logical_state(*model));
    if (get_pipeline_model_parallel_rank() == 0) {
      testing::expect_states_equal(all, before);
    }
    for (const auto& entry : model->named_parameters()) {
      if (entry.parameter->flags().shared) {
        EXPECT_TRUE(testing::same_bits(*entry.parameter, before.at("tok_embeddings.weight")));
      }
    }
  });
}

TEST_P(PipelineRun, LoadingIsStrictAboutTheWholeModel) {
  run(GetParam(), [&](const AllConfig& config) {
    const auto model = get_model(config);
    // Every rank has the same file.
    State state = get_logical_state(GPTModel(config.model_config, "BSH"));
    set_logical_state(*model, state, "right");
    state.emplace("stranger", zeros({1}));
    try {
      set_logical_state(*model, state, "wrong");
      ADD_FAILURE() << "accepted";
    } catch (const ValueError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("stranger"));
      EXPECT_THAT(error.what(), ::testing::Not(::testing::HasSubstr("layers.")));
    }
  });
}

TEST_P(PipelineRun, TheLoopWritesTheFilesOfOneProcess) {
  const auto files_of = [&](Layout layout, const std::string& folder) {
    layout.overrides.insert(
        layout.overrides.end(),
        {"training_config.output_dir=" + folder, "training_config.training_iters=2",
         "training_config.dump_activation_steps=[1]", "training_config.dump_grad_steps=[1]",
         "training_config.dump_weight_steps=[2]"});
    std::filesystem::create_directories(folder);
    run(layout, [&](const AllConfig& config) {
      testing::Trainer trainer(config);
      MadeUpSamples source(config);
      const TrainSummary summary = testing::watched_train(trainer.cell, source, config, {});
      EXPECT_EQ(summary.steps, 2);
      EXPECT_GT(summary.last_loss, 0);
    });
  };
  const std::string split = dir_.path() + "/split";
  const std::string whole = dir_.path() + "/whole";
  files_of(GetParam(), split);
  files_of(one_process(GetParam()), whole);
  for (const char* name : {"acts_step_1", "grads_step_1"}) {
    const std::string file = std::string("/") + name + ".safetensors";
    testing::expect_states_close(read_weights(split + file), read_weights(whole + file), 1e-4);
  }
  const State weights = read_weights(split + "/weights_step_2.safetensors");
  EXPECT_EQ(weights.size(), read_weights(whole + "/weights_step_2.safetensors").size());
}

INSTANTIATE_TEST_SUITE_P(Layouts, PipelineRun, ::testing::ValuesIn(kLayouts), [](const auto& info) {
  return info.param.name;
});

// A schedule on numbers: each stage multiplies by its own weight, the loss is the sum.
TEST(Schedules, RunTheOrderOfTheLiteratureAndKeepAsLittleAsItSays) {
  for (const auto& [stages, chunks, micro_batches] :
       {std::array{4, 1, 6}, std::array{2, 2, 5}, std::array{4, 2, 8}}) {
    const PipelineShape shape{.stages = stages, .chunks = chunks, .micro_batches = micro_batches};
    ModelParallelSizes sizes{.pipeline_model_parallel_size = stages};
    if (chunks > 1) {
      sizes.virtual_pipeline_model_parallel_size = chunks;
    }
    testing::run_parallel(stages, sizes, [&, chunks = chunks, micro_batches = micro_batches] {
      const int rank = get_pipeline_model_parallel_rank();
      std::vector<PipelinePass> ran;
      int64_t in_flight = 0;
      int64_t most = 0;
      const auto note = [&](const PipelinePass& pass) {
        ran.push_back(pass);
        in_flight += pass.backward ? -1 : 1;
        most = std::max(most, in_flight);
      };
      const Tensor weight = full({1}, 2);
      weight.set_requires_grad();
      PipelineWork work{.micro_batches = micro_batches, .chunks = chunks};
      work.messages.shape = [](int64_t i) { return Shape{i + 1, 3}; };  // each of its own size
      work.forward = [&](int chunk, int64_t i, const Tensor& input) {
        note({false, chunk, i});
        const bool first = rank == 0 && chunk == 0;
        EXPECT_EQ(input.defined(), !first);
        const Tensor x = first ? full({i + 1, 3}, static_cast<double>(i)) : input;
        const Tensor y = x * weight;
        const bool last = rank == shape.stages - 1 && chunk == shape.chunks - 1;
        return last ? StageOutput{sum(y), scalar(1)} : StageOutput{y, {}};
      };
      work.before_backward = [&](int chunk, int64_t i) { note({true, chunk, i}); };
      get_forward_backward_func(chunks)(work);
      EXPECT_EQ(ran, pipeline_order(shape, rank));
      EXPECT_EQ(most, max_in_flight(shape, rank));
      // d loss / d weight of a stage: chunks * sum over elements of i * 2^(n - 1).
      double expected = 0;
      for (int i = 0; i < micro_batches; ++i) {
        expected += i * 3.0 * (i + 1);
      }
      expected *= chunks * std::pow(2, shape.stages * shape.chunks - 1);
      EXPECT_EQ(weight.grad().item(), expected);
    });
  }
}

TEST(Schedules, RefuseTheWrongNumberOfChunks) {
  PipelineWork work;
  work.chunks = 2;
  EXPECT_THROW(forward_backward_no_pipelining(work), ValueError);
  EXPECT_THROW(forward_backward_pipelining_without_interleaving(work), ValueError);
  work.chunks = 1;
  EXPECT_THROW(forward_backward_pipelining_with_interleaving(work), ValueError);
  testing::run_parallel(2, {.pipeline_model_parallel_size = 2}, [] {
    EXPECT_THROW(forward_backward_no_pipelining({}), ValueError);
    EXPECT_EQ(get_forward_backward_func(), forward_backward_pipelining_without_interleaving);
    EXPECT_EQ(get_forward_backward_func(2), forward_backward_pipelining_with_interleaving);
  });
  EXPECT_EQ(get_forward_backward_func(), forward_backward_no_pipelining);
}

TEST(Schedules, AHiddenStateOfTheWrongKindIsNamed) {
  testing::run_parallel(2, {.pipeline_model_parallel_size = 2}, [] {
    PipelineWork work;
    work.messages.shape = [](int64_t) { return Shape{2, 3}; };
    work.forward = [](int, int64_t, const Tensor&) { return StageOutput{zeros({3, 2}), {}}; };
    if (get_pipeline_model_parallel_rank() == 0) {
      EXPECT_THROW(get_forward_backward_func()(work), ValueError);
    }
  });
}

}  // namespace
}  // namespace tapestry
