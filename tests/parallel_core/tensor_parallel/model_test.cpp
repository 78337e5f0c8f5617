// Whole models on several tensor-parallel ranks against one process: the same weights, losses,
// gradients and updates.
#include <gtest/gtest.h>

#include "autograd/tensor/error.h"
#include "parallel_core/inference/generation.h"
#include "tests/parallel_core/model_run.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/small_model.h"
#include "tests/parallel_core/transformer/structures.h"

namespace tapestry {
namespace model_test {
namespace {

using testing::joined;
using testing::kDropout;
using testing::kLlama;
using testing::ModelRun;
using testing::moved_weights;
using testing::Overrides;
using testing::Reference;
using testing::reference_run;
using testing::rounding_bounds;
using testing::run_parallel;
using testing::RunDistances;
using testing::RunOptions;
using testing::small_config;
using testing::State;
using testing::train_model;

const std::string kModel = "model_config.";

struct Layout {
  int ranks;
  bool sequence_parallel = false;
  bool sequence_first = false;
};
std::string text_of(const Layout& l) {
  return concat("tp", l.ranks, l.sequence_parallel ? "_sp" : "", l.sequence_first ? "_sbh" : "");
}
std::ostream& operator<<(std::ostream& out, const Layout& l) { return out << text_of(l); }

// Eight heads and twelve channels per rank where there are eight ranks.
Overrides in_layout(const Overrides& overrides, const Layout& l) {
  return joined(
      overrides,
      {concat("parallel_config.tensor_model_parallel_size=", l.ranks),
       concat("parallel_config.sequence_parallel=", l.sequence_parallel ? "True" : "False"),
       concat("dataset_config.data_layout=", l.sequence_first ? "SBH" : "BSH")});
}

// Two micro-batches a step; also norms of single tensors.
void expect_same_run(const Overrides& overrides_, const Layout& layout, int steps) {
  // With this eps an element whose gradient is nothing but rounding stays where it is.
  const Overrides overrides = joined(
      overrides_, {"training_config.log_param_grad_norms=True", "optimizer_config.eps=0.001"});
  const RunOptions options = {.steps = steps, .micro_batches = 2};
  const Reference& single = reference_run(overrides, options);
  EXPECT_FALSE(single.run.tensor_norms.empty());
  const AllConfig config = small_config(in_layout(overrides, layout));
  EXPECT_TRUE(config.unsupported.empty());
  run_parallel(layout.ranks, {.tensor_model_parallel_size = layout.ranks}, [&] {
    testing::expect_same_run(train_model(config, single.start, options), single.run, single.bounds);
  });
}

std::string layout_name(const ::testing::TestParamInfo<Layout>& info) {
  return text_of(info.param);
}

// -- every structure, in one layout each of every kind ------------------------------------------

class EveryStructure : public ::testing::TestWithParam<std::tuple<testing::Structure, Layout>> {};

TEST_P(EveryStructure, HasTheCurveOfOneProcess) {
  const auto& [structure, layout] = GetParam();
  expect_same_run(structure.overrides, layout, 3);
}

INSTANTIATE_TEST_SUITE_P(
    TensorParallel,
    EveryStructure,
    ::testing::Combine(::testing::ValuesIn(testing::structures()),
                       ::testing::Values(Layout{2}, Layout{2, true, true}, Layout{4, true})),
    [](const auto& info) {
      return std::get<0>(info.param).name + "_" + text_of(std::get<1>(info.param));
    });

// -- every layout, for a model with much in it --------------------------------------------------

const Overrides kGpt2 = {kModel + "num_attention_heads=8"};

class EveryLayout : public ::testing::TestWithParam<Layout> {};

TEST_P(EveryLayout, GroupsFewerThanRanks) { expect_same_run(kLlama, GetParam(), 3); }

TEST_P(EveryLayout, OneGroup) {
  expect_same_run(joined(kLlama, {kModel + "num_query_groups=1", kModel + "qkv_has_bias=True"}),
                  GetParam(), 3);
}

TEST_P(EveryLayout, BiasesTiedEmbeddingsAndPositions) { expect_same_run(kGpt2, GetParam(), 3); }

// Sums differ by rounding alone only if every mask is that of one process.
TEST_P(EveryLayout, DropoutHasTheSameMasks) {
  expect_same_run(joined(kGpt2, kDropout), GetParam(), 2);
  expect_same_run(joined(kLlama, kDropout), GetParam(), 2);
}

TEST_P(EveryLayout, UnfusedKernels) {
  expect_same_run(joined(joined(kLlama, kDropout), {kModel + "use_fused_kernels=False"}),
                  GetParam(), 2);
}

TEST_P(EveryLayout, Bfloat16) {
  const Overrides half = {kModel + "compute_dtype=bfloat16"};
  expect_same_run(joined(kLlama, half), GetParam(), 2);
  expect_same_run(joined(kGpt2, half), GetParam(), 2);
}

TEST_P(EveryLayout, TwoRunsHaveTheSameBits) {
  const AllConfig config = small_config(in_layout(joined(kLlama, kDropout), GetParam()));
  ModelRun runs[2];
  for (ModelRun& run : runs) {
    run_parallel(GetParam().ranks, {.tensor_model_parallel_size = GetParam().ranks}, [&] {
      ModelRun found = train_model(config, {}, {.steps = 2, .micro_batches = 2});
      if (get_tensor_model_parallel_rank() == 0) {
        run = std::move(found);
      }
    });
  }
  EXPECT_EQ(runs[0].losses, runs[1].losses);
  testing::expect_states_equal(runs[0].weights, runs[1].weights);
}

// Also of a length that the ranks do not divide.
TEST_P(EveryLayout, GeneratesTheSameText) {
  const Overrides overrides = joined(kLlama, {kModel + "seq_length=16"});
  const State start = moved_weights(overrides);
  const std::vector<int32_t> prompt = {3, 1, 4};
  const GenerationOptions options = {.max_new_tokens = 8, .temperature = 0.7, .seed = 5};
  const auto single = testing::model_with(small_config(overrides), start);
  const std::vector<int32_t> expected = generate(*single, prompt, options);
  const AllConfig config = small_config(in_layout(overrides, GetParam()));
  run_parallel(GetParam().ranks, {.tensor_model_parallel_size = GetParam().ranks}, [&] {
    const auto model = testing::model_with(config, start);
    EXPECT_EQ(generate(*model, prompt, options), expected);
  });
}

INSTANTIATE_TEST_SUITE_P(TensorParallel,
                         EveryLayout,
                         ::testing::Values(Layout{2},
                                           Layout{2, false, true},
                                           Layout{2, true},
                                           Layout{2, true, true},
                                           Layout{4},
                                           Layout{4, true, true},
                                           Layout{8, true},
                                           Layout{8, false, true}),
                         layout_name);

// -- masters and storage -------------------------------------------------------------------------

TEST(TensorParallelModel, SixteenBitParametersWithMasters) {
  expect_same_run(
      joined(kLlama, {kModel + "compute_dtype=bfloat16", kModel + "params_dtype=bfloat16"}),
      {2, true}, 3);
}

TEST(TensorParallelModel, ErrorsNameWhatCannotBeDivided) {
  const AllConfig heads = small_config({kModel + "num_attention_heads=4"});
  const AllConfig ffn = small_config({kModel + "ffn_hidden_size=50"});
  const AllConfig groups =
      small_config({kModel + "num_attention_heads=12", kModel + "kv_channels=4",
                    kModel + "group_query_attention=True", kModel + "num_query_groups=6"});
  const AllConfig fused = small_config({kModel + "fused_linear_cross_entropy=True"});
  run_parallel(4, {.tensor_model_parallel_size = 4}, [&] {
    EXPECT_THROW(get_model(ffn), ValueError);
    EXPECT_THROW(get_model(groups), ValueError);
    EXPECT_THROW(get_model(fused), ValueError);
    EXPECT_NO_THROW(get_model(heads));
  });
  run_parallel(8, {.tensor_model_parallel_size = 8},
               [&] { EXPECT_THROW(get_model(heads), ValueError); });
  const AllConfig odd =
      small_config(in_layout({kModel + "seq_length=8"}, {.ranks = 2, .sequence_parallel = true}));
  run_parallel(2, {.tensor_model_parallel_size = 2}, [&] {
    const auto model = get_model(odd);
    const Tensor tokens = zeros({1, 7}, kInt64);
    EXPECT_THROW(model->forward({.tokens = tokens, .labels = tokens}), ValueError);
  });
}

}  // namespace
}  // namespace model_test
}  // namespace tapestry
