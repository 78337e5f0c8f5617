// Whole models on several tensor-parallel ranks against one process: the same weights, losses,
// gradients and updates.
#include <gtest/gtest.h>

#include <numeric>

#include "autograd/tensor/error.h"
#include "parallel_core/dist_checkpointing/logical_state.h"
#include "parallel_core/training/generation.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/small_model.h"
#include "tests/parallel_core/transformer/structures.h"

namespace tapestry {
namespace {

using testing::expect_states_close;
using testing::make_batch;
using testing::Overrides;
using testing::run_parallel;
using testing::small_config;
using testing::State;
using testing::Trainer;

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

Overrides joined(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Eight heads and twelve channels per rank where there are eight ranks.
Overrides in_layout(const Overrides& overrides, const Layout& l) {
  return joined(
      overrides,
      {concat("parallel_config.tensor_model_parallel_size=", l.ranks),
       concat("parallel_config.sequence_parallel=", l.sequence_parallel ? "True" : "False"),
       concat("dataset_config.data_layout=", l.sequence_first ? "SBH" : "BSH")});
}

// What a training run shows; the states on the first rank only.
struct Outcome {
  State initial;
  std::vector<double> losses;
  std::vector<double> norms;  // of the first step, by name in order
  State gradients;            // of the first step
  State weights;              // at the end
};

// Trains on the current rank from `start`, or from the initial weights moved a little.
Outcome train_steps(const AllConfig& config, const State* start, int steps) {
  Trainer trainer(config);
  Outcome run;
  run.initial = get_logical_state(*trainer.model);
  if (start != nullptr) {
    set_logical_state(*trainer.model, *start, "test");
  }
  for (int step = 0; step < steps; ++step) {
    const std::vector<data::Batch> batches = {make_batch(trainer.config, 2, 4 * step),
                                              make_batch(trainer.config, 2, 4 * step + 2)};
    if (step > 0) {
      run.losses.push_back(trainer.cell(batches).loss);
      continue;
    }
    testing::Gradients first = testing::run_step(trainer, batches);
    run.losses.push_back(first.result.loss);
    run.gradients = std::move(first.tensors);
    for (const auto& [name, norm] : first.result.grad_norms) {
      run.norms.push_back(norm);
    }
  }
  run.weights = get_logical_state(*trainer.model, trainer.optimizer.get());
  return run;
}

// Initial weights of one process, moved a little.
State start_of(const Overrides& overrides) {
  const auto model = get_model(small_config(overrides));
  testing::jitter(*model, 0.05);
  return get_logical_state(*model);
}

struct Bounds {
  double loss = 1e-5;
  double norm = 1e-5;      // of all gradients together, first step
  double gradient = 1e-4;  // elements, and norms of single tensors
  double weight = 1e-4;
};
// 16-bit rounding differs where sums are cut; Adam makes it visible in weights that hardly move.
constexpr Bounds kHalf = {.loss = 2e-3, .norm = 3e-3, .gradient = 6e-2, .weight = 0.5};

double length(const std::vector<double>& v) {
  return std::sqrt(std::inner_product(v.begin(), v.end(), v.begin(), 0.0));
}

void expect_same_run(const Overrides& overrides_,
                     const Layout& layout,
                     int steps,
                     const Bounds& bounds = {}) {
  // With this eps an element whose gradient is nothing but rounding stays where it is.
  const Overrides overrides = joined(
      overrides_, {"training_config.log_param_grad_norms=True", "optimizer_config.eps=0.001"});
  const State start = start_of(overrides);
  const Outcome single = train_steps(small_config(overrides), &start, steps);
  const AllConfig config = small_config(in_layout(overrides, layout));
  EXPECT_TRUE(config.unsupported.empty());
  run_parallel(layout.ranks, {.tensor_model_parallel_size = layout.ranks}, [&] {
    const Outcome found = train_steps(config, &start, steps);
    for (size_t i = 0; i < single.losses.size(); ++i) {
      EXPECT_NEAR(found.losses[i], single.losses[i], bounds.loss * single.losses[i]) << i;
    }
    ASSERT_EQ(found.norms.size(), single.norms.size());
    const double largest = *std::max_element(single.norms.begin(), single.norms.end());
    EXPECT_NEAR(length(found.norms), length(single.norms), bounds.norm * length(single.norms));
    for (size_t i = 0; i < single.norms.size(); ++i) {
      EXPECT_NEAR(found.norms[i], single.norms[i],
                  bounds.gradient * std::max(single.norms[i], 1e-2 * largest));
    }
    if (get_tensor_model_parallel_rank() != 0) {
      EXPECT_TRUE(found.initial.empty() && found.gradients.empty() && found.weights.empty());
      return;
    }
    // Initial weights are those of one process, bit for bit.
    testing::expect_states_equal(found.initial, single.initial);
    expect_states_close(found.gradients, single.gradients, bounds.gradient);
    expect_states_close(found.weights, single.weights, bounds.weight);
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

const Overrides kLlama = {kModel + "position_embedding_type=rope",
                          kModel + "normalization=RMSNorm",
                          kModel + "hidden_act=swiglu",
                          kModel + "group_query_attention=True",
                          kModel + "num_query_groups=2",
                          kModel + "num_attention_heads=8",
                          kModel + "qk_layernorm=True",
                          kModel + "untie_embeddings_and_output_weights=True"};
const Overrides kGpt2 = {kModel + "num_attention_heads=8"};
const Overrides kDropout = {kModel + "hidden_dropout=0.2", kModel + "attention_dropout=0.2"};

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
  expect_same_run(joined(kLlama, half), GetParam(), 2, kHalf);
  expect_same_run(joined(kGpt2, half), GetParam(), 2, kHalf);
}

TEST_P(EveryLayout, TwoRunsHaveTheSameBits) {
  const AllConfig config = small_config(in_layout(joined(kLlama, kDropout), GetParam()));
  Outcome runs[2];
  for (Outcome& run : runs) {
    run_parallel(GetParam().ranks, {.tensor_model_parallel_size = GetParam().ranks}, [&] {
      Outcome found = train_steps(config, nullptr, 2);
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
  const State start = start_of(overrides);
  const std::vector<int32_t> prompt = {3, 1, 4};
  const GenerationOptions options = {.max_new_tokens = 8, .temperature = 0.7, .seed = 5};
  const auto single = get_model(small_config(overrides));
  set_logical_state(*single, start, "test");
  const std::vector<int32_t> expected = generate(*single, prompt, options);
  const AllConfig config = small_config(in_layout(overrides, GetParam()));
  run_parallel(GetParam().ranks, {.tensor_model_parallel_size = GetParam().ranks}, [&] {
    const auto model = get_model(config);
    set_logical_state(*model, start, "test");
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
      {2, true}, 3, kHalf);
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
}  // namespace tapestry
