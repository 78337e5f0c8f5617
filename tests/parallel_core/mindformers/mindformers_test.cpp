// What a program that comes from MindFormers writes: the old names, and layers that take the
// configuration alone.
#include "parallel_core/training/mindformers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <type_traits>

#include "autograd/tensor/factory.h"
#include "parallel_core/transformer/latent_attention.h"
#include "parallel_core/transformer/mixers/gated_delta_net.h"
#include "parallel_core/transformer/mixers/gated_short_conv.h"
#include "parallel_core/transformer/mixers/mamba2.h"
#include "parallel_core/transformer/moe/moe_layer.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/small_model.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace {

using testing::Overrides;
using testing::small_config;

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

TEST(OldNames, AreTheNewClasses) {
  EXPECT_TRUE((std::is_same_v<Llama2Model, GPTModel>));
  EXPECT_TRUE((std::is_same_v<SequentialMLP, Experts> && std::is_same_v<GroupedMLP, Experts>));
  EXPECT_TRUE((std::is_same_v<MoEAlltoAllTokenDispatcher, TokenDispatcher>));
  EXPECT_TRUE((std::is_same_v<P2PPrimitive, P2PCommunication>));
  EXPECT_TRUE((std::is_same_v<DistributedDataParallelConfig, DataParallelOptions>));
  EXPECT_TRUE((std::is_same_v<ParamAndGradBuffer, ParamAndGradBucket>));
  EXPECT_TRUE((std::is_same_v<MixedPrecisionOptimizer, optim::Optimizer>));
  EXPECT_TRUE((std::is_same_v<Float16OptimizerWithFloat16Params, optim::Optimizer>));
  EXPECT_TRUE((std::is_same_v<DistributedOptimizer, optim::Optimizer>));
}

TEST(OldNames, SetWeightDecayMakesTheTutorialsGroups) {
  const auto model = get_model(small_config());
  for (const nn::Module::NamedParameter& entry : model->named_parameters()) {
    const bool plain = entry.name.find("norm") == std::string::npos &&
                       entry.name.find("bias") == std::string::npos;
    EXPECT_EQ(decay_filter(*entry.parameter), plain) << entry.name;
  }
  const std::vector<optim::ParamGroup> groups = set_weight_decay(*model);
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].weight_decay, 0.1);
  EXPECT_EQ(groups[1].weight_decay, 0.0);
  EXPECT_EQ(groups[0].params.size() + groups[1].params.size(), model->named_parameters().size());
  const AllConfig config = small_config({"optimizer_config.weight_decay=0.1"});
  const auto optimizer = get_optimizer(config, *model, groups);
  EXPECT_EQ(optimizer->param_groups()[1].weight_decay, 0.0);
}

TEST(OldNames, SetSeedDecidesStartValues) {
  const AllConfig config = small_config();
  const auto value = [&](uint64_t seed) {
    set_seed(seed);
    const ParallelMLP mlp(config, 1);
    return mlp.named_parameters()[0].parameter->to_vector<double>();
  };
  EXPECT_EQ(value(5), value(5));
  EXPECT_NE(value(5), value(6));
  const auto draw = [](uint64_t seed) {
    set_seed(seed);
    return randn({4}).to_vector<double>();
  };
  EXPECT_EQ(draw(5), draw(5));
  EXPECT_NE(draw(5), draw(6));
}

TEST(OldNames, SetParallelContextMakesTheGroups) {
  const AllConfig config = small_config({"parallel_config.tensor_model_parallel_size=2"});
  run_thread_ranks(2, [&](const std::shared_ptr<ProcessGroup>& world) {
    set_parallel_context(config, world);
    EXPECT_EQ(get_tensor_model_parallel_world_size(), 2);
    destroy_model_parallel();
  });
}

TEST(OldNames, GetDatasetOpensWhatTheConfigurationNames) {
  const data::TempDir dir;
  std::string text;
  for (int i = 0; i < 200; ++i) {
    text += concat("The river has ", i, " bends.\n");
  }
  dir.write("text.txt", text);
  const AllConfig config =
      small_config({"model_config.vocab_size=260", "dataset_config.tokenizer_type=byte",
                    concat("dataset_config.text=", dir.file("text.txt")),
                    concat("dataset_config.dataset_dir=", dir.file("dataset"))});
  testing::run_parallel(1, {}, [&] {
    const std::unique_ptr<data::DataSource> found = get_dataset(config);
    const RunData expected = open_data(config);
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(found->micro_batch({}, 0, 1, 2, 0, 1).tokens,
              expected.train->micro_batch({}, 0, 1, 2, 0, 1).tokens);
  });
}

TEST(OldNames, LossWithMaskIsTheMeanOfWhatCounts) {
  const Tensor logits = randn({3, 31});
  const Tensor labels = tensor(std::vector<int64_t>{3, 0, 30}, {3});
  const Tensor mask = tensor({1, 0, 1});
  const VocabParallelCrossEntropy cross_entropy(small_config());
  const std::vector<double> each = cross_entropy.forward(logits, labels).to_vector<double>();
  const double loss = get_loss_func(small_config())(logits, labels, mask).item();
  EXPECT_NEAR(loss, (each[0] + each[2]) / 2, 1e-6);
}

TEST(OldNames, TheReducerSumsShares) {
  const AllConfig config = small_config(
      {"parallel_config.tensor_model_parallel_size=2", "parallel_config.sequence_parallel=True"});
  testing::run_parallel(2, {.tensor_model_parallel_size = 2}, [&] {
    const auto model = get_model(config);
    ParameterList parameters;
    for (const nn::Module::NamedParameter& entry : model->named_parameters()) {
      entry.parameter->set_grad(full(entry.parameter->shape(), 1));
      parameters.push_back(entry.parameter);
    }
    const ParallelTrainingReducer reduce;
    reduce(parameters);
    for (const nn::Parameter* parameter : parameters) {
      const bool partial = parameter->flags().tp == nn::TensorParallel::kPartial;
      EXPECT_EQ(parameter->grad().to_vector<double>()[0], partial ? 2 : 1);
    }
  });
}

#pragma GCC diagnostic pop

// The start values follow from the names, so that two ways to the same layer show by their bits.
void expect_same(const nn::Module& found, const nn::Module& expected) {
  const auto a = found.named_parameters();
  const auto b = expected.named_parameters();
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].name, b[i].name);
    EXPECT_EQ(a[i].parameter->to_vector<double>(), b[i].parameter->to_vector<double>());
  }
}

template <class Layer>
void expect_one_argument(const AllConfig& config) {
  expect_same(Layer(config, 2), Layer(config.model_config, 2, /*sequence_first=*/true));
}

TEST(OneArgument, EveryLayerTakesTheConfiguration) {
  const Overrides second_axis = {"dataset_config.data_layout=SBH"};
  const AllConfig config = small_config(second_axis);
  const TransformerConfig& m = config.model_config;
  const PipelineStage stage = whole_model(m);
  expect_one_argument<ParallelAttention>(config);
  expect_one_argument<ParallelMLP>(config);
  expect_one_argument<ParallelTransformerLayer>(config);
  expect_same(Embedding(config), Embedding(m, true));
  expect_same(ParallelTransformer(config), ParallelTransformer(m, true, stage));
  expect_same(*get_language_model(config), *get_language_model(m, true, stage));
  expect_same(GPTModel(config), GPTModel(m, "SBH"));
  const AllConfig mixture = small_config(
      testing::joined(second_axis, {"moe_config.num_experts=4", "model_config.hidden_act=swiglu"}));
  expect_one_argument<MoELayer>(mixture);
  expect_one_argument<TopKRouter>(mixture);
  expect_same(Experts(mixture, 2), Experts(mixture.model_config, 2));
  expect_one_argument<GatedShortConv>(config);
  // The axis of the sequence is the configuration's: rows of two sequences do not mix.
  const NoGradGuard guard;
  const Tensor x = randn({8, 2, 32});
  ParallelAttention attention(config, 1);
  const Tensor both = attention.forward(x, AttentionContext{}).output;
  const Tensor one = attention.forward(x.slice(1, 0, 1), AttentionContext{}).output;
  EXPECT_LT(testing::distance(both.slice(1, 0, 1), one), 1e-5);
}

TEST(OneArgument, LogitsAndLossAreThoseOfTheWholeVocabulary) {
  const AllConfig config = small_config({"parallel_config.tensor_model_parallel_size=2"});
  const Tensor logits = randn({3, 31});
  const Tensor labels = tensor(std::vector<int64_t>{3, 0, 30}, {3});
  const std::vector<double> expected =
      VocabParallelCrossEntropy(small_config()).forward(logits, labels).to_vector<double>();
  testing::run_parallel(2, {.tensor_model_parallel_size = 2}, [&] {
    const VocabularyShard own = vocabulary_shard(31, get_tensor_model_parallel_rank(), /*size=*/2);
    Tensor part = full({3, own.rows}, 0);
    copy_values(logits.slice(1, own.first, own.first + own.valid), part.slice(1, 0, own.valid));
    const auto found = VocabParallelCrossEntropy(config).forward(part, labels).to_vector<double>();
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(found[i], expected[i], 1e-6);
    }
  });
}

}  // namespace
}  // namespace tapestry
