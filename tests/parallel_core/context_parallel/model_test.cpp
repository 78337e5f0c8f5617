// Trainings on ranks that divide the sequences, among other axes, against one process: the same
// losses, gradients and updates.
#include <gtest/gtest.h>

#include <algorithm>

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
using testing::make_batch;
using testing::MakeBatch;
using testing::ModelRun;
using testing::moved_weights;
using testing::Overrides;
using testing::Reference;
using testing::reference_run;
using testing::run_parallel;
using testing::RunDistances;
using testing::RunOptions;
using testing::small_config;
using testing::State;
using testing::train_model;
using testing::Trainer;

const std::string kModel = "model_config.";
const std::string kParallel = "parallel_config.";

struct Layout {
  int context;
  int tensor = 1;
  bool sequence_parallel = false;
  int pipeline = 1;
  int chunks = 1;
  int data = 1;
  bool sequence_first = false;
  Overrides more = {};

  int ranks() const { return context * tensor * pipeline * data; }
  ModelParallelSizes sizes() const {
    ModelParallelSizes out{.tensor_model_parallel_size = tensor,
                           .pipeline_model_parallel_size = pipeline,
                           .context_parallel_size = context};
    if (chunks > 1) {
      out.virtual_pipeline_model_parallel_size = chunks;
    }
    return out;
  }
};
std::string text_of(const Layout& l) {
  std::string text = concat("cp", l.context);
  text += l.tensor > 1 ? concat("_tp", l.tensor, l.sequence_parallel ? "_sp" : "") : "";
  text += l.pipeline > 1 ? concat("_pp", l.pipeline) : "";
  text += l.chunks > 1 ? concat("_vpp", l.chunks) : "";
  text += l.data > 1 ? concat("_dp", l.data) : "";
  text += l.sequence_first ? "_sbh" : "";
  for (const std::string& more : l.more) {
    const size_t begin = more.find('.') + 1;
    text += "_" + more.substr(begin, more.find('=') - begin);
  }
  return text;
}
std::ostream& operator<<(std::ostream& out, const Layout& l) { return out << text_of(l); }

Overrides in_layout(const Overrides& overrides, const Layout& l) {
  return joined(joined(overrides, l.more),
                {concat(kParallel, "context_parallel_size=", l.context),
                 concat(kParallel, "tensor_model_parallel_size=", l.tensor),
                 concat(kParallel, "sequence_parallel=", l.sequence_parallel ? "True" : "False"),
                 concat(kParallel, "pipeline_model_parallel_size=", l.pipeline),
                 concat(kParallel, "virtual_pipeline_model_parallel_size=", l.chunks),
                 concat("dataset_config.data_layout=", l.sequence_first ? "SBH" : "BSH")});
}

const Overrides kLlama = joined(testing::kLlama, {kModel + "seq_length=16"});
const Overrides kGpt2 = {kModel + "seq_length=16"};

// Micro-batches of a kind.
struct Batches {
  std::string name;
  MakeBatch make = testing::two_rows;
};

// `float32_sums`: loss and norm differ by the roundings of such sums alone.
void expect_same_run(const Overrides& overrides_,
                     const Layout& layout,
                     int steps,
                     const Batches& batches = {},
                     bool float32_sums = false) {
  // With this eps an element whose gradient is nothing but rounding stays where it is.
  const Overrides overrides = joined(overrides_, {"optimizer_config.eps=0.001"});
  const RunOptions options = {.steps = steps, .make = batches.make};
  const Reference& single = reference_run(overrides, options, batches.name);
  RunDistances bounds = single.bounds;
  if (float32_sums) {
    constexpr double kSums = 16 * 0x1p-24;
    bounds.loss = std::min(bounds.loss, kSums);
    bounds.norm = std::min(bounds.norm, kSums);
  }
  const AllConfig config = small_config(in_layout(overrides, layout));
  EXPECT_TRUE(config.unsupported.empty());
  run_parallel(layout.ranks(), layout.sizes(), [&] {
    testing::expect_same_run(train_model(config, single.start, options), single.run, bounds);
  });
}

// -- every structure -----------------------------------------------------------------------------

class EveryStructure : public ::testing::TestWithParam<std::tuple<testing::Structure, Layout>> {};

TEST_P(EveryStructure, HasTheCurveOfOneProcess) {
  const auto& [structure, layout] = GetParam();
  expect_same_run(structure.overrides, layout, 2);
}

INSTANTIATE_TEST_SUITE_P(
    ContextParallel,
    EveryStructure,
    ::testing::Combine(::testing::ValuesIn(testing::structures()),
                       ::testing::Values(Layout{.context = 2},
                                         Layout{.context = 4, .sequence_first = true})),
    [](const auto& info) {
      return std::get<0>(info.param).name + "_" + text_of(std::get<1>(info.param));
    });

// -- every layout --------------------------------------------------------------------------------

class EveryLayout : public ::testing::TestWithParam<Layout> {};

TEST_P(EveryLayout, RotaryGroupsAndNorms) { expect_same_run(kLlama, GetParam(), 3); }

TEST_P(EveryLayout, BiasesTiedEmbeddingsAndPositions) { expect_same_run(kGpt2, GetParam(), 3); }

TEST_P(EveryLayout, SlidingWindow) {
  expect_same_run(joined(kLlama, {kModel + "window_size=[5, 0]"}), GetParam(), 2);
}

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
  const Layout& layout = GetParam();
  const Overrides half = {kModel + "compute_dtype=bfloat16"};
  // Dividing sequences moves no 16-bit rounding, only sums over tokens.
  const bool float32_sums = layout.tensor == 1 && layout.pipeline == 1;
  expect_same_run(joined(kLlama, half), layout, 2, {}, float32_sums);
  expect_same_run(joined(kGpt2, half), layout, 2, {}, float32_sums);
}

TEST_P(EveryLayout, DocumentsAndTheirPositions) {
  const MakeBatch make = [](const AllConfig& config, int64_t first_sample) {
    data::Batch batch = make_batch(config, 2, first_sample);
    batch.document_starts = {{0, 5, 11}, {3}};
    for (const auto& starts : batch.document_starts) {
      int64_t begin = 0;
      for (int64_t i = 0; i < batch.seq; ++i) {
        begin = std::find(starts.begin(), starts.end(), i) != starts.end() ? i : begin;
        batch.position_ids.push_back(i - begin);
      }
    }
    return batch;
  };
  expect_same_run(joined(kGpt2, kDropout), GetParam(), 2, {"documents", make});
  expect_same_run(kLlama, GetParam(), 2, {"documents", make});
}

TEST_P(EveryLayout, MasksOfTheData) {
  const MakeBatch make = [](const AllConfig& config, int64_t first_sample) {
    data::Batch batch = make_batch(config, 2, first_sample);
    for (int64_t row = 0; row < 2; ++row) {
      for (int64_t i = 0; i < batch.seq; ++i) {
        for (int64_t j = 0; j < batch.seq; ++j) {
          batch.attention_mask.push_back(j > i || (i * 3 + j * 5 + row) % 7 == 0 ? 1 : 0);
        }
      }
    }
    return batch;
  };
  expect_same_run(kLlama, GetParam(), 2, {"masks", make});
}

TEST_P(EveryLayout, LossOverTokens) {
  expect_same_run(joined(kLlama, {"training_config.calculate_per_token_loss=True"}), GetParam(), 2);
}

TEST_P(EveryLayout, TwoRunsHaveTheSameBits) {
  const Layout& layout = GetParam();
  const Overrides overrides = joined(joined(kLlama, kDropout), {kModel + "compute_dtype=bfloat16"});
  const State start = moved_weights(overrides);
  const AllConfig config = small_config(in_layout(overrides, layout));
  std::vector<ModelRun> first(static_cast<size_t>(layout.ranks()));
  for (const int round : {0, 1}) {
    run_parallel(layout.ranks(), layout.sizes(), [&] {
      ModelRun run = train_model(config, start, {.steps = 2});
      ModelRun& kept = first[static_cast<size_t>(get_world_group().rank())];
      if (round == 0) {
        kept = std::move(run);
        return;
      }
      EXPECT_EQ(run.losses, kept.losses);
      EXPECT_EQ(run.norms, kept.norms);
      testing::expect_states_equal(run.gradients, kept.gradients);
      testing::expect_states_equal(run.weights, kept.weights);
    });
  }
}

TEST_P(EveryLayout, LogitsOfTextOfAnyLength) {
  const Layout& layout = GetParam();
  for (const Overrides& overrides : {kLlama, kGpt2}) {
    const State start = moved_weights(overrides);
    AllConfig config = small_config(overrides);
    const auto logits_of = [&](const AllConfig& c, int64_t length) {
      const auto model = testing::model_with(c, start);
      model->eval();
      data::Batch batch = make_batch(c, 1);
      batch.labels.clear();
      batch.loss_mask.clear();
      batch.tokens.resize(static_cast<size_t>(length));
      batch.seq = length;
      const Tensor logits = pipeline_logits(*model, batch);
      return logits.defined() ? logits.reshape({length, logits.size(2)}) : logits;
    };
    for (const int64_t length : {1, 5, 13, 16}) {
      const Tensor expected = logits_of(config, length);
      run_parallel(layout.ranks(), layout.sizes(), [&] {
        const Tensor found = logits_of(small_config(in_layout(overrides, layout)), length);
        ASSERT_EQ(found.defined(), is_pipeline_last_stage(/*ignore_virtual=*/true));
        if (found.defined()) {
          EXPECT_LE(testing::distance(found, expected), 1e-5) << length;
        }
      });
    }
  }
}

TEST_P(EveryLayout, GeneratesTheTextOfOneProcess) {
  const Layout& layout = GetParam();
  const State start = moved_weights(kLlama);
  const auto text_of_model = [&](const AllConfig& c) {
    const auto model = testing::model_with(c, start);
    const std::vector<int32_t> prompt = {1, 2, 3};
    return generate(*model, prompt,
                    {.max_new_tokens = 18, .temperature = 0.8, .seed = 5, .max_context = 16});
  };
  const std::vector<int32_t> expected = text_of_model(small_config(kLlama));
  run_parallel(layout.ranks(), layout.sizes(), [&] {
    EXPECT_EQ(text_of_model(small_config(in_layout(kLlama, layout))), expected);
  });
}

INSTANTIATE_TEST_SUITE_P(
    ContextParallel,
    EveryLayout,
    ::testing::Values(
        Layout{.context = 2},
        Layout{.context = 4},
        Layout{.context = 2, .sequence_first = true},
        Layout{.context = 2, .tensor = 2},
        Layout{.context = 2, .tensor = 2, .sequence_parallel = true},
        Layout{.context = 2, .tensor = 4, .sequence_parallel = true, .sequence_first = true},
        Layout{.context = 2, .pipeline = 2},
        Layout{.context = 2, .data = 2},
        Layout{.context = 2, .data = 2, .more = {"training_config.use_distributed_optimizer=True"}},
        Layout{.context = 2, .data = 2, .more = {kParallel + "zero_level=z3"}},
        Layout{.context = 2, .tensor = 2, .sequence_parallel = true, .pipeline = 2}),
    [](const ::testing::TestParamInfo<Layout>& info) { return text_of(info.param); });

TEST(ContextParallelModel, InterleavedStages) {
  expect_same_run(joined(kLlama, {kModel + "num_layers=4"}),
                  {.context = 2, .pipeline = 2, .chunks = 2, .sequence_first = true}, 2);
}

TEST(ContextParallelModel, GroupsFewerThanRanks) {
  expect_same_run(joined(kLlama, {kModel + "num_query_groups=1"}),
                  {.context = 2, .tensor = 2, .sequence_parallel = true}, 2);
}

TEST(ContextParallelModel, LossAndHeadInOneOp) {
  expect_same_run(joined(kGpt2, {kModel + "fused_linear_cross_entropy=True"}), {.context = 4}, 2);
}

TEST(ContextParallelModel, GradientsReducedWhileBackwardRuns) {
  expect_same_run(
      kLlama,
      {.context = 2,
       .data = 2,
       .more = {"training_config.wrap_with_ddp=True", "training_config.overlap_grad_reduce=True",
                "training_config.bucket_size=2000"}},
      2);
}

// -- bytes ---------------------------------------------------------------------------------------

TEST(ContextParallelModel, CommunicatesTheTheoreticalBytes) {
  constexpr int64_t kMicroBatches = 3;
  constexpr int64_t kRows = 2;
  for (const int ranks : {2, 4}) {
    for (const DType compute : {kFloat32, kBFloat16}) {
      const Layout layout{.context = ranks};
      const AllConfig config = small_config(
          in_layout(joined(kLlama, {concat(kModel, "compute_dtype=", name_of(compute))}), layout));
      run_parallel(ranks, layout.sizes(), [&] {
        Trainer trainer(config);
        ProcessGroup& context = get_context_parallel_group();
        ProcessGroup& gradients = get_data_parallel_group(/*with_context_parallel=*/true);
        std::vector<data::Batch> batches;
        for (int64_t i = 0; i < kMicroBatches; ++i) {
          batches.push_back(make_batch(config, kRows, kRows * i));
        }
        context.reset_stats();
        gradients.reset_stats();
        trainer.cell(batches);
        const TransformerConfig& m = config.model_config;
        // Keys and values of a layer: gathered in either pass, their gradients scattered.
        const int64_t elements = kMicroBatches * m.num_layers * 2 * kRows * m.seq_length *
                                 m.num_query_groups * *m.kv_channels;
        const CommunicationStats& stats = context.stats();
        EXPECT_EQ(stats.of(Collective::kAllGather).bytes, 2 * elements * size_of(compute));
        EXPECT_EQ(stats.of(Collective::kReduceScatter).bytes, elements * 4);
        // The loss of each micro-batch, float32, and the number of its tokens, float64.
        EXPECT_EQ(stats.of(Collective::kAllReduce).bytes, kMicroBatches * (4 + 8));
        EXPECT_EQ(gradients.stats().of(Collective::kAllReduce).bytes,
                  trainer.data_parallel->size() * 4);
      });
    }
  }
}

}  // namespace
}  // namespace model_test
}  // namespace tapestry
