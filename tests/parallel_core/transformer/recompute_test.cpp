// Recomputed layers give the bits of those that keep everything, in every layout, and keep less.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "autograd/tape/engine.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/estimates/recompute_estimate.h"
#include "parallel_core/transformer/activation_recorder.h"
#include "tests/parallel_core/model_families.h"
#include "tests/parallel_core/model_run.h"
#include "tests/parallel_core/parallel_testing.h"

namespace tapestry {
namespace recompute_test {
namespace {

using testing::joined;
using testing::ModelRun;
using testing::Overrides;

const Overrides kDropout = {"model_config.hidden_dropout=0.2",
                            "model_config.attention_dropout=0.2"};
// Everything that a layer can have.
const Overrides kFull = joined(joined(testing::kLlama, kDropout),
                               {"model_config.num_layers=4", "model_config.mtp_num_layers=2",
                                "model_config.use_sandwich_norm=True"});
const Overrides kGpt = joined(kDropout, {"model_config.num_layers=4"});

struct Form {
  const char* name;
  Overrides overrides;
  bool for_all_models = false;
};

// All ways to say what is recomputed.
const std::vector<Form>& forms() {
  static const std::vector<Form> all = {
      {"True", {"parallel_config.recompute_config=True"}},
      {"some layers", {"parallel_config.recompute_config={recompute_layers: [0, 3]}"}},
      {"every operation",
       {"parallel_config.recompute_config={select_recompute: ['.*', '.*\\..*', '.*\\..*\\..*', "
        "'.*\\..*\\..*\\..*'], select_comm_recompute: True}"},
       true},
      {"some operations",
       {"parallel_config.recompute_config={select_recompute: {'.*\\.norm': True, 'attention\\.wq': "
        "True, "
        "'attention\\.core_attention': True, 'feed_forward': True}}"}},
      {"all but some",
       {"parallel_config.recompute_config={recompute: True, select_recompute_exclude: "
        "['attention\\.core_attention', 'feed_forward\\.mul', 'add', 'ffn_norm\\.norm'], "
        "select_comm_recompute_exclude: ['.*\\.norm'], recompute_slice_activation: True}"},
       true},
      {"what is usual is excluded",
       {"parallel_config.recompute_config={select_recompute_exclude: True, "
        "select_comm_recompute_exclude: True}"}},
      {"without communication",
       {"parallel_config.recompute_config={recompute: True, mp_comm_recompute: False, "
        "parallel_optimizer_comm_recompute: False}"}},
      {"sliced",
       {"parallel_config.recompute_config={recompute: True, recompute_slice_activation: True}"}},
      {"groups of layers",
       {"model_config.recompute_granularity=full", "model_config.recompute_method=uniform",
        "model_config.recompute_num_layers=2", "model_config.distribute_saved_activations=True"}},
      {"selective", {"model_config.recompute_granularity=selective"}},
  };
  return all;
}

struct Layout {
  const char* name = "";
  int ranks = 1;
  ModelParallelSizes sizes = {};
  Overrides overrides = {};
};

void PrintTo(const Layout& layout, std::ostream* out) { *out << layout.name; }

const std::string kParallel = "parallel_config.";

const Layout kLayouts[] = {
    {"OneProcess"},
    {"OneForwardOneBackward",
     2,
     {.pipeline_model_parallel_size = 2},
     {kParallel + "pipeline_model_parallel_size=2"}},
    {"Interleaved",
     2,
     {.pipeline_model_parallel_size = 2, .virtual_pipeline_model_parallel_size = 2},
     {kParallel + "pipeline_model_parallel_size=2",
      kParallel + "virtual_pipeline_model_parallel_size=2"}},
    {"Zero3", 2, {}, {kParallel + "zero_level=z3", "training_config.overlap_grad_reduce=True"}},
    {"TensorParallel",
     2,
     {.tensor_model_parallel_size = 2},
     {kParallel + "tensor_model_parallel_size=2"}},
    {"SequenceParallel",
     2,
     {.tensor_model_parallel_size = 2},
     {kParallel + "tensor_model_parallel_size=2", kParallel + "sequence_parallel=True",
      "dataset_config.data_layout=SBH"}},
    {"ContextParallel", 2, {.context_parallel_size = 2}, {kParallel + "context_parallel_size=2"}},
};

// What rank 0 has after two steps of four micro-batches.
ModelRun train(const Layout& layout, const Overrides& overrides) {
  const AllConfig config = testing::small_config(
      joined({"dataset_config.batch_size=2", "dataset_config.micro_batch_num=4",
              "training_config.num_threads=1"},
             joined(layout.overrides, overrides)));
  ModelRun out;
  testing::run_parallel(layout.ranks, layout.sizes, [&] {
    ModelRun run = testing::train_model(config, {}, {});
    if (RankContext::current().rank() == 0) {
      out = std::move(run);
    }
  });
  return out;
}

class RecomputedLayers : public ::testing::TestWithParam<Layout> {};

TEST_P(RecomputedLayers, TrainToTheSameBits) {
  const Overrides half = joined(kGpt, {"training_config.bf16=True"});
  const Overrides composed =
      joined(kGpt, {"model_config.use_fused_kernels=False",
                    "model_config.apply_residual_connection_post_norm=True"});
  const std::vector<Form>& all = forms();
  const Overrides gemma = testing::gemma4_moe();
  const Overrides streams = joined(half, {"model_config.enable_hyper_connections=True"});
  for (const Overrides* model : {&kFull, &half, &composed, &gemma, &streams}) {
    const ModelRun plain = train(GetParam(), *model);
    for (const Form& form : all) {
      if (model != &kFull && model != &streams && !form.for_all_models) {
        continue;
      }
      SCOPED_TRACE(concat(form.name, ", ", model->back()));
      const ModelRun run = train(GetParam(), joined(*model, form.overrides));
      EXPECT_EQ(run.losses, plain.losses);
      EXPECT_EQ(run.norms, plain.norms);
      testing::expect_states_equal(run.gradients, plain.gradients);
      testing::expect_states_equal(run.weights, plain.weights);
    }
  }
}

// Keys that later layers read are there for them.
TEST(RecomputedKeys, OfOtherLayersTrainToTheSameBits) {
  const Overrides model =
      testing::gemma4({"model_config.num_layers=6", "model_config.num_kv_shared_layers=3"});
  const ModelRun plain = train({}, model);
  for (const Form& form : forms()) {
    SCOPED_TRACE(form.name);
    const ModelRun run = train({}, joined(model, form.overrides));
    EXPECT_EQ(run.losses, plain.losses);
    testing::expect_states_equal(run.gradients, plain.gradients);
    testing::expect_states_equal(run.weights, plain.weights);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts,
                         RecomputedLayers,
                         ::testing::ValuesIn(kLayouts),
                         [](const auto& info) { return std::string(info.param.name); });

// Bytes that rank 0 has communicated in its tensor- or data-parallel group in a second step of two
// micro-batches, by collective.
CommunicationStats communicated(const std::string& layout_name, const Overrides& overrides) {
  const auto* const layout = std::find_if(std::begin(kLayouts), std::end(kLayouts),
                                          [&](const Layout& l) { return l.name == layout_name; });
  CommunicationStats out;
  const AllConfig config = testing::small_config(joined(layout->overrides, overrides));
  testing::run_parallel(layout->ranks, layout->sizes, [&] {
    testing::Trainer trainer(config);
    ProcessGroup& group = layout->sizes.tensor_model_parallel_size > 1
                              ? get_tensor_model_parallel_group()
                              : get_data_parallel_group();
    for (int64_t step = 0; step < 2; ++step) {
      group.reset_stats();
      trainer.cell({testing::make_batch(trainer.config, 2, 4 * step),
                    testing::make_batch(trainer.config, 2, 4 * step + 2)});
    }
    if (RankContext::current().rank() == 0) {
      out = group.stats();
    }
  });
  return out;
}

TEST(RecomputedLayer, CommunicatesAgainUnlessItIsNotTo) {
  const auto bytes = [](const std::string& layout, Collective what, const Overrides& overrides) {
    return communicated(layout, overrides).of(what).bytes;
  };
  const std::string config = "parallel_config.recompute_config=";
  // Of a layer's two sums in forward the first is needed again: the second one's result is not.
  constexpr int64_t hidden = 2 * 2 * 8 * 32 * 4;  // two micro-batches of two rows
  const Collective sum = Collective::kAllReduce;
  const int64_t plain = bytes("TensorParallel", sum, {});
  EXPECT_EQ(bytes("TensorParallel", sum, {config + "True"}), plain + 2 * hidden);
  EXPECT_EQ(bytes("TensorParallel", sum, {config + "{recompute: True, mp_comm_recompute: False}"}),
            plain);
  const Collective gather = Collective::kAllGather;
  // Inputs are gathered again in any case, for two products of each layer.
  const int64_t gathered = bytes("SequenceParallel", gather, {});
  EXPECT_EQ(bytes("SequenceParallel", gather, {config + "{select_comm_recompute_exclude: True}"}),
            gathered - 4 * hidden);
  // The share of a layer's input comes back once.
  EXPECT_EQ(bytes("TensorParallel", gather,
                  {config + "{recompute: True, recompute_slice_activation: True}"}),
            bytes("TensorParallel", gather, {config + "True"}) + 2 * hidden);
  // Weights, with z3: once a step, or once a use.
  const int64_t weights = bytes("Zero3", gather, {});
  EXPECT_GT(bytes("Zero3", gather, {config + "True"}), weights);
  EXPECT_LT(2 * bytes("Zero3", gather, {config + "{parallel_optimizer_comm_recompute: False}"}),
            weights);
}

// A model whose activations are large beside everything else.
AllConfig wide(const Overrides& overrides) {
  return testing::small_config(
      joined({"model_config.num_layers=12", "model_config.hidden_size=64",
              "model_config.ffn_hidden_size=256", "model_config.seq_length=128",
              "model_config.max_position_embeddings=128"},
             overrides));
}

// The highest number of bytes of activations in a step.
int64_t peak_of_activations(const Overrides& overrides) {
  testing::Trainer trainer(wide(overrides));
  const std::vector<data::Batch> batches = {testing::make_batch(trainer.config, 4)};
  trainer.cell(batches);
  CachingAllocator& allocator = RankContext::current().allocator();
  const auto kind = static_cast<int>(MemoryKind::kActivation);
  const int64_t before = allocator.stats().current_by_kind[kind];
  allocator.reset_peak();
  trainer.cell(batches);
  EXPECT_EQ(allocator.stats().current_by_kind[kind], before);
  return allocator.stats().peak_by_kind[kind] - before;
}

TEST(RecomputedLayer, KeepsItsInputAlone) {
  const auto plain = static_cast<double>(peak_of_activations({}));
  const auto full =
      static_cast<double>(peak_of_activations({"parallel_config.recompute_config=True"}));
  const auto half = static_cast<double>(
      peak_of_activations({"parallel_config.recompute_config={recompute: [6]}"}));
  const auto selective = static_cast<double>(
      peak_of_activations({"parallel_config.recompute_config={select_recompute: ['.*\\.norm', "
                           "'feed_forward\\.mapping\\.matmul']}"}));
  const auto nothing = static_cast<double>(
      peak_of_activations({"parallel_config.recompute_config={select_recompute_exclude: "
                           "['feed_forward\\..*\\.activation\\..*']}"}));
  EXPECT_LT(full, 0.4 * plain);
  EXPECT_GT(half, 1.3 * full);
  EXPECT_LT(half, 0.8 * plain);
  EXPECT_GT(selective, 1.3 * full);
  EXPECT_LT(selective, 0.8 * plain);
  EXPECT_GT(nothing, 1.2 * plain);
}

// Bytes that a layer keeps from its forward to its backward pass.
double kept_bytes(const Overrides& overrides) {
  const auto of_layers = [&](int layers) {
    testing::Trainer trainer(wide(joined({concat("model_config.num_layers=", layers)}, overrides)));
    const data::Batch batch = testing::make_batch(trainer.config, 8);
    random_context().sample_ids = batch.sample_ids;
    CachingAllocator& allocator = RankContext::current().allocator();
    const auto kind = static_cast<int>(MemoryKind::kActivation);
    const int64_t before = allocator.stats().current_by_kind[kind];
    const Tensor loss = trainer.model->forward(to_model_input(batch)).loss;
    return static_cast<double>(allocator.stats().current_by_kind[kind] - before);
  };
  return (of_layers(4) - of_layers(2)) / 2;
}

// What the log and the estimate say is so, but for a few numbers a row, and the blocks' slack.
TEST(RecomputedLayer, KeepsWhatTheEstimateSays) {
  const Overrides batch = {"dataset_config.batch_size=8"};
  constexpr double rows = 8 * 128 * 16 * sizeof(float);  // statistics of norms, also of each head
  for (const Overrides& model :
       {Overrides{},
        Overrides{"model_config.hidden_act=swiglu", "model_config.position_embedding_type=rope",
                  "model_config.normalization=RMSNorm", "model_config.group_query_attention=True",
                  "model_config.num_query_groups=2", "model_config.qk_layernorm=True"},
        Overrides{"training_config.bf16=True", "model_config.enable_hyper_connections=True",
                  "model_config.num_residual_streams=3", "model_config.use_sandwich_norm=True"},
        Overrides{"model_config.enable_hyper_connections=True",
                  "model_config.normalization=RMSNorm", "model_config.add_bias_linear=False"},
        Overrides{"training_config.bf16=True", "model_config.fp32_residual_connection=True",
                  "model_config.hidden_act=relu", "model_config.use_sandwich_norm=True",
                  "model_config.hidden_dropout=0.1"}}) {
    for (const Form& form : forms()) {
      if (std::string(form.name) == "some layers") {
        continue;  // not the same in each
      }
      const Overrides overrides = joined(joined(batch, model), form.overrides);
      const AllConfig config = wide(overrides);
      double estimate = 0;
      for (const size_t layer : {2, 3}) {
        estimate += layer_costs(config).at(layer).kept / 2;
      }
      const double kept = kept_bytes(overrides);
      EXPECT_GE(kept, estimate) << form.name << " " << model.size();
      EXPECT_LE(kept, 1.1 * estimate + rows) << form.name << " " << model.size();
    }
    const Overrides usual = joined(batch, model);
    const double estimate = layer_cost(wide(usual), RecomputePolicy(), 0).kept;
    EXPECT_GE(kept_bytes(usual), estimate);
    EXPECT_LE(kept_bytes(usual), 1.1 * estimate + rows);
  }
}

// Counts what is reported.
class Counter final : public ActivationRecorder {
 public:
  void value_made(const ObservedValue& value) override { ++counts[std::string(value.name)]; }
  std::map<std::string, int> counts;
};

TEST(RecomputedLayer, ReportsOnce) {
  const auto counted = [](const Overrides& overrides) {
    testing::Trainer trainer(overrides);
    Counter counter;
    trainer.cell({testing::make_batch(trainer.config, 2)});
    return counter.counts;
  };
  const auto counts = counted({"parallel_config.recompute_config=True"});
  EXPECT_EQ(counts, counted({}));
  EXPECT_EQ(counts.at("layers.1.attention.q"), 1);
}

// A model of one's own: products in a row.
class Products final : public TransformerModel {
 public:
  explicit Products(const AllConfig& config) : TransformerModel(config) {
    layers_ = make_layers([&](int64_t i) {
      return &register_module<ColumnParallelLinear>(concat("layer", i), concat("layer", i),
                                                    config.model_config.hidden_size,
                                                    config.model_config.hidden_size, config);
    });
  }
  std::string type_name() const override { return "Products"; }
  ModelOutput forward(const ModelInput& in) override {
    Tensor x = in.hidden;
    for (size_t i = 0; i < layers_.front().size(); ++i) {
      x = run_layer(static_cast<int64_t>(i),
                    [&] { return x + gelu(layers_.front()[i]->forward(gelu(x)).output); });
    }
    return {.hidden = x};
  }

 private:
  std::vector<std::vector<ColumnParallelLinear*>> layers_;
};

TEST(RecomputedLayer, OfAModelOfOnesOwn) {
  struct Outcome {
    int64_t kept = 0;
    Tensor gradient;
  };
  const auto outcome = [](const Overrides& overrides) {
    Products model(testing::small_config(overrides));
    const Tensor x = normal(0, 1, {2, 8, 32}, kFloat32, RandomKey{3, 4, 0}).set_requires_grad();
    const auto kind = static_cast<int>(MemoryKind::kActivation);
    CachingAllocator& allocator = RankContext::current().allocator();
    const int64_t before = allocator.stats().current_by_kind[kind];
    const Tensor out = model.forward({.hidden = x}).hidden;
    Outcome result = {allocator.stats().current_by_kind[kind] - before, {}};
    sum(out * out).backward();
    result.gradient = x.grad();
    return result;
  };
  const Outcome plain = outcome({});
  const Outcome again = outcome({"parallel_config.recompute_config=True"});
  EXPECT_LT(2 * again.kept, plain.kept);
  EXPECT_TRUE(testing::same_bits(again.gradient, plain.gradient));
}

// Second derivatives, of which the engine knows nothing special.
TEST(RecomputedLayer, GradientsCanBeDifferentiated) {
  const auto second = [](const Overrides& overrides) {
    testing::Trainer trainer(joined({"model_config.fused_linear_cross_entropy=False"}, overrides));
    trainer.model->eval();
    const data::Batch batch = testing::make_batch(trainer.config, 2);
    const Tensor loss = trainer.model->forward(to_model_input(batch)).loss;
    TensorList weights;
    for (const auto& entry : trainer.model->named_parameters()) {
      weights.push_back(*entry.parameter);
    }
    Tensor squares;
    for (const Tensor& gradient : grad(loss, weights, {}, {.create_graph = true})) {
      const Tensor square = sum(gradient * gradient);
      squares = squares.defined() ? squares + square : square;
    }
    return grad(squares, weights, {}, {}, /*allow_unused=*/true);
  };
  const TensorList plain = second({});
  const TensorList again = second({"parallel_config.recompute_config=True"});
  ASSERT_EQ(plain.size(), again.size());
  for (size_t i = 0; i < plain.size(); ++i) {
    ASSERT_EQ(plain[i].defined(), again[i].defined());
    EXPECT_TRUE(!plain[i].defined() || testing::same_bits(plain[i], again[i])) << i;
  }
}

}  // namespace
}  // namespace recompute_test
}  // namespace tapestry
