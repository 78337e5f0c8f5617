// Whole steps in a pipeline against the same steps in one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "optim/grad_clip.h"
#include "parallel_core/dist_checkpointing/logical_state.h"
#include "parallel_core/pipeline_parallel/collect.h"
#include "tests/parallel_core/other_rounding.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace pipeline_training_test {
namespace {

using testing::Overrides;
using testing::State;

const std::string kParallel = "parallel_config.";
const std::string kModel = "model_config.";

struct Layout {
  const char* name = "";
  int stages = 1;
  int chunks = 1;
  int64_t micro_batches = 1;
  Overrides overrides;
  int64_t layers = 8;
};

void PrintTo(const Layout& layout, std::ostream* out) { *out << layout.name; }

// What a run left, as rank 0 knows it.
struct Trained {
  std::vector<StepResult> results;
  State gradients;  // of the first step
  State weights;
};

constexpr int kSteps = 3;

Overrides settings(const Layout& layout) {
  return testing::joined(
      {kModel + "num_layers=" + std::to_string(layout.layers), "optimizer_config.clip_grad=1.0",
       "optimizer_config.eps=1e-6", "training_config.log_param_grad_norms=True"},
      layout.overrides);
}

Trained train(const AllConfig& config, int64_t micro_batches, const State& start = {}) {
  testing::Trainer trainer(config, start);
  Trained run;
  trainer.cell.set_gradient_observer(
      [&](int64_t /*step*/) {
        run.gradients = gather_over_pipeline(logical_gradients(*trainer.model));
      },
      [](int64_t step) { return step == 1; });
  for (int64_t step = 0; step < kSteps; ++step) {
    std::vector<data::Batch> batches;
    for (int64_t i = 0; i < micro_batches; ++i) {
      batches.push_back(testing::make_batch(config, 2, 2 * (step * micro_batches + i)));
    }
    run.results.push_back(trainer.cell(batches));
  }
  run.weights = gather_over_pipeline(get_logical_state(*trainer.model, trainer.optimizer.get()));
  return run;
}

// With one thread, as the ranks of a pipeline.
void in_one_process(const std::function<void()>& body) { testing::run_parallel(1, {}, body); }

AllConfig single_config(const Layout& layout) {
  Overrides overrides = settings(layout);
  std::erase_if(overrides, [](const std::string& text) { return text.starts_with(kParallel); });
  return testing::small_config(overrides);
}

ModelParallelSizes sizes_of(const Layout& layout) {
  ModelParallelSizes sizes{.pipeline_model_parallel_size = layout.stages};
  if (layout.chunks > 1) {
    sizes.virtual_pipeline_model_parallel_size = layout.chunks;
  }
  return sizes;
}

AllConfig config_of(const Layout& layout) {
  Overrides overrides = settings(layout);
  overrides.push_back(kParallel + "pipeline_model_parallel_size=" + std::to_string(layout.stages));
  if (layout.chunks > 1) {
    overrides.push_back(kParallel +
                        "virtual_pipeline_model_parallel_size=" + std::to_string(layout.chunks));
  }
  return testing::small_config(overrides);
}

// The run of rank 0; what all ranks must agree on is checked.
Trained in_pipeline(const Layout& layout) {
  std::vector<Trained> runs(static_cast<size_t>(layout.stages));
  testing::run_parallel(layout.stages, sizes_of(layout), [&] {
    runs[static_cast<size_t>(get_pipeline_model_parallel_rank())] =
        train(config_of(layout), layout.micro_batches);
  });
  for (const Trained& run : runs) {
    for (size_t step = 0; step < run.results.size(); ++step) {
      const StepResult& first = runs[0].results[step];
      EXPECT_EQ(run.results[step].loss, first.loss);
      EXPECT_EQ(run.results[step].grad_norm, first.grad_norm);
      EXPECT_EQ(run.results[step].loss_tokens, first.loss_tokens);
      EXPECT_TRUE(run.results[step].bubble.has_value());
    }
  }
  return std::move(runs[0]);
}

// The tensors whose gradient is not zero up to rounding, as that of a key bias without rotation is:
// Adam makes steps of full size out of the rounding.
State with_gradient(const State& weights, const Trained& run) {
  double scale = 0;
  for (const auto& [name, gradient] : run.gradients) {
    scale = std::max(scale, testing::largest(gradient));
  }
  State out;
  for (const auto& [name, value] : weights) {
    if (testing::largest(run.gradients.at(name)) > 1e-5 * scale) {
      out.emplace(name, value);
    }
  }
  return out;
}

// Largest distances, relative.
struct Distances {
  double loss = 0;
  double norm = 0;  // of all gradients, and of single tensors against it
  double gradient = 0;
  double weight = 0;
};

template <class F>
void each_distance(const Trained& found, const Trained& expected, const F& f) {
  const auto relative = [](double a, double b) { return a == b ? 0 : std::abs(a - b) / b; };
  for (size_t step = 0; step < expected.results.size(); ++step) {
    const StepResult& a = found.results[step];
    const StepResult& b = expected.results[step];
    f(&Distances::loss, concat("loss of step ", step), relative(a.loss, b.loss));
    f(&Distances::norm, concat("norm of step ", step), relative(a.grad_norm, b.grad_norm));
    for (const auto& [name, norm] : b.grad_norms) {
      f(&Distances::norm, concat("norm of ", name, " in step ", step),
        std::abs(a.grad_norms.at(name) - norm) / b.grad_norm);
    }
  }
  double scale = 0;
  for (const auto& [name, gradient] : expected.gradients) {
    scale = std::max(scale, testing::largest(gradient));
  }
  for (const auto& [name, gradient] : expected.gradients) {
    f(&Distances::gradient, "gradient of " + name,
      testing::distance(found.gradients.at(name), gradient, 1e-2 * scale));
  }
  for (const auto& [name, value] : with_gradient(expected.weights, expected)) {
    f(&Distances::weight, name,
      optim::global_norm({found.weights.at(name) - value}) / optim::global_norm({value}));
  }
}

// The run of one process, and what rounding may do to it.
struct Reference {
  Trained run;
  Distances bounds;
};

Reference reference(const Layout& layout) {
  const AllConfig config = single_config(layout);
  Reference out;
  in_one_process([&] {
    const State start = get_logical_state(*get_model(config));
    out.run = train(config, layout.micro_batches);
    testing::with_other_rounding(
        start, config.model_config.compute_dtype,
        [&](const State& weights) { return train(config, layout.micro_batches, weights); },
        [&](const Trained& again) {
          each_distance(again, out.run,
                        [&](double Distances::*kind, const std::string& /*name*/, double distance) {
                          out.bounds.*kind = std::max(out.bounds.*kind, distance);
                        });
        });
  });
  for (double Distances::*kind :
       {&Distances::loss, &Distances::norm, &Distances::gradient, &Distances::weight}) {
    out.bounds.*kind = testing::bound_of_spread(out.bounds.*kind);
  }
  return out;
}

void expect_same_training(const Trained& found, const Reference& reference) {
  const Trained& expected = reference.run;
  ASSERT_EQ(found.results.size(), expected.results.size());
  for (size_t step = 0; step < found.results.size(); ++step) {
    const StepResult& a = found.results[step];
    const StepResult& b = expected.results[step];
    EXPECT_EQ(a.loss_tokens, b.loss_tokens);
    EXPECT_EQ(a.tokens, b.tokens);
    EXPECT_EQ(a.finite, b.finite);
    EXPECT_EQ(a.lr, b.lr);
    ASSERT_EQ(a.grad_norms.size(), b.grad_norms.size());
    for (const auto& [name, norm] : b.grad_norms) {
      ASSERT_TRUE(a.grad_norms.contains(name)) << name;
    }
  }
  ASSERT_EQ(testing::names_of(found.gradients), testing::names_of(expected.gradients));
  ASSERT_EQ(testing::names_of(found.weights), testing::names_of(expected.weights));
  each_distance(found, expected,
                [&](double Distances::*kind, const std::string& name, double distance) {
                  EXPECT_LE(distance, reference.bounds.*kind) << name;
                });
}

const std::string kDropout = kModel + "hidden_dropout=0.1";
const std::string kAttentionDropout = kModel + "attention_dropout=0.1";
const std::string kUntied = kModel + "untie_embeddings_and_output_weights=True";
const std::string kPositions = kModel + "position_embedding_type=learned_absolute";
const std::string kSbh = "dataset_config.data_layout=SBH";

class PipelineTraining : public ::testing::TestWithParam<Layout> {};

TEST_P(PipelineTraining, EqualsOneProcess) {
  const Trained found = in_pipeline(GetParam());
  expect_same_training(found, reference(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(
    Layouts,
    PipelineTraining,
    ::testing::Values(
        Layout{"TwoStages", 2, 1, 4},
        Layout{"OneMicroBatch", 2, 1, 1},
        Layout{"FourStages", 4, 1, 8, {kDropout, kAttentionDropout}},
        Layout{"FewerMicroBatchesThanStages", 4, 1, 3, {kUntied, kSbh}},
        Layout{"EightStages", 8, 1, 8, {kPositions}},
        Layout{"Uneven", 4, 1, 4, {kParallel + "num_layer_list=[2,3,1,2]", kDropout}},
        Layout{"Offset", 4, 1, 4, {kParallel + "offset=[1,1,0,0]", kUntied}, 10},
        Layout{"Remainder", 4, 1, 4, {}, 7},
        Layout{"StandaloneEmbedding", 3, 1, 4, {kParallel + "standalone_embedding_stage=True"}},
        Layout{"Interleaved", 2, 2, 4, {kDropout, kAttentionDropout}},
        Layout{"InterleavedByFour", 2, 4, 8, {kSbh, kDropout}},
        Layout{"InterleavedOneMicroBatch", 2, 2, 1, {kUntied}},
        Layout{"InterleavedThreeOverTwo", 2, 2, 3, {kPositions, kDropout}},
        Layout{"InterleavedThreeOverFour", 4, 2, 3, {kUntied, kDropout}},
        Layout{"InterleavedFiveOverFour", 4, 2, 5, {kSbh}},
        Layout{"InterleavedFourByFour", 4, 4, 8, {kDropout}, 16},
        Layout{"InterleavedUneven", 2, 2, 4, {kParallel + "num_layer_list=[[3,1],[2,2]]", kUntied}},
        Layout{"WithoutOverlap",
               2,
               2,
               4,
               {kParallel + "overlap_p2p_comm=False", kModel + "normalization=LayerNorm"}},
        Layout{"LossPerToken", 2, 1, 3, {"training_config.calculate_per_token_loss=True"}},
        Layout{"SumOfMicroBatches", 2, 1, 3, {"training_config.loss_reduction=sum"}},
        Layout{"StaticLossScale", 2, 1, 3, {"training_config.loss_scale=64"}},
        Layout{"Variants",
               2,
               1,
               2,
               {kModel + "use_sandwich_norm=True", kModel + "hidden_act=swiglu",
                kModel + "apply_residual_connection_post_norm=True",
                kModel + "add_bias_linear=True", kModel + "use_final_norm=False"}}),
    [](const auto& info) { return info.param.name; });

class PipelineTrainingInBfloat16 : public ::testing::TestWithParam<Layout> {};

TEST_P(PipelineTrainingInBfloat16, EqualsOneProcess) {
  Layout layout = GetParam();
  layout.overrides.emplace_back("training_config.bf16=True");
  const Trained found = in_pipeline(layout);
  expect_same_training(found, reference(layout));
}

INSTANTIATE_TEST_SUITE_P(
    Layouts,
    PipelineTrainingInBfloat16,
    ::testing::Values(Layout{"FourStages", 4, 1, 4, {kDropout}},
                      Layout{"Interleaved", 2, 2, 3, {kUntied}},
                      Layout{
                          "Float32Residual", 2, 1, 4, {kModel + "fp32_residual_connection=True"}},
                      Layout{"HalfParameters", 2, 1, 4, {kModel + "params_dtype=bfloat16"}},
                      Layout{"SmallOptimizer",
                             2,
                             1,
                             4,
                             {"optimizer_config.store_param_remainders=True",
                              "optimizer_config.exp_avg_dtype=bfloat16",
                              "optimizer_config.main_grads_dtype=bfloat16"}}),
    [](const auto& info) { return info.param.name; });

TEST(Pipeline, SameRunGivesSameBits) {
  const Layout layout{"", 4, 2, 6, {kDropout, kAttentionDropout}};
  const Trained one = in_pipeline(layout);
  const Trained two = in_pipeline(layout);
  for (size_t step = 0; step < one.results.size(); ++step) {
    EXPECT_EQ(one.results[step].loss, two.results[step].loss);
    EXPECT_EQ(one.results[step].grad_norm, two.results[step].grad_norm);
  }
  testing::expect_states_equal(one.gradients, two.gradients);
  testing::expect_states_equal(one.weights, two.weights);
}

// The copy of the word embeddings on the last stage.
const nn::Parameter* tied_embedding(const GPTModel& model) {
  for (const auto& entry : model.named_parameters()) {
    if (entry.parameter->flags().shared || entry.parameter->flags().has_copy) {
      return entry.parameter;
    }
  }
  return nullptr;
}

TEST(Pipeline, CopiesOfTheEmbeddingsStartAndStayEqual) {
  for (const Overrides& more :
       {Overrides{},
        Overrides{"training_config.bf16=True", "optimizer_config.store_param_remainders=True",
                  "optimizer_config.exp_avg_dtype=bfloat16",
                  "optimizer_config.exp_avg_sq_dtype=bfloat16",
                  "optimizer_config.main_grads_dtype=bfloat16"}}) {
    const Layout layout{"", 3, 1, 2, more};
    std::vector<Tensor> first(6);
    testing::run_parallel(3, sizes_of(layout), [&] {
      testing::Trainer trainer(config_of(layout));
      const auto rank = static_cast<size_t>(get_pipeline_model_parallel_rank());
      const nn::Parameter* weight = tied_embedding(*trainer.model);
      EXPECT_EQ(weight == nullptr, rank == 1);
      if (weight != nullptr) {
        EXPECT_EQ(weight->flags().shared, rank == 2);
        first[rank] = dense_copy(
            trainer.optimizer->main_param("language_model.embedding.word_embeddings.weight"));
      }
      for (int64_t step = 0; step < 3; ++step) {
        trainer.cell({testing::make_batch(trainer.config, 2, 4 * step),
                      testing::make_batch(trainer.config, 2, 4 * step + 2)});
      }
      if (weight != nullptr) {
        first[rank + 3] = dense_copy(
            trainer.optimizer->main_param("language_model.embedding.word_embeddings.weight"));
      }
    });
    EXPECT_TRUE(testing::same_bits(first[0], first[2]));
    EXPECT_TRUE(testing::same_bits(first[3], first[5]));
    EXPECT_FALSE(testing::same_bits(first[0], first[3]));
  }
}

TEST(Pipeline, BytesSentAreThoseOfTheHiddenStates) {
  for (const auto& [stages, chunks] : {std::pair{4, 1}, std::pair{2, 2}}) {
    const int64_t micro_batches = 5;
    const Layout layout{
        "", stages, chunks, micro_batches, {kUntied, "training_config.log_param_grad_norms=False"}};
    std::vector<CommunicationStats> stats(static_cast<size_t>(stages));
    testing::run_parallel(stages, sizes_of(layout), [&] {
      testing::Trainer trainer(config_of(layout));
      std::vector<data::Batch> batches;
      for (int64_t i = 0; i < micro_batches; ++i) {
        batches.push_back(testing::make_batch(trainer.config, 2, 2 * i));
      }
      ProcessGroup& group = get_pipeline_model_parallel_group();
      group.reset_stats();
      trainer.cell(batches);
      stats[static_cast<size_t>(group.rank())] = group.stats();
    });
    const AllConfig config = config_of(layout);
    const int64_t message =
        2 * config.model_config.seq_length * config.model_config.hidden_size * 4;
    for (int rank = 0; rank < stages; ++rank) {
      // Each chunk sends forward and back, but for the ends of the model.
      const int64_t messages =
          micro_batches * (2 * chunks - (rank == 0 ? 1 : 0) - (rank == stages - 1 ? 1 : 0));
      const auto& sent = stats[static_cast<size_t>(rank)].of(Collective::kSend);
      EXPECT_EQ(sent.calls, messages);
      EXPECT_EQ(sent.bytes, messages * message);
    }
  }
}

}  // namespace
}  // namespace pipeline_training_test
}  // namespace tapestry
