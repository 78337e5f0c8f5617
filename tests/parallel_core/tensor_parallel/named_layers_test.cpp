// Layers made from a name, global sizes and a configuration: what a program makes for itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/ops/softmax.h"
#include "autograd/tape/engine.h"
#include "autograd/tensor/error.h"
#include "parallel_core/init_method.h"
#include "parallel_core/tensor_parallel/cross_entropy.h"
#include "parallel_core/tensor_parallel/layers.h"
#include "parallel_core/transformer/gpt_model.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace named_layers_test {
namespace {

using testing::distance;
using testing::Overrides;
using testing::run_parallel;
using testing::same_bits;
using testing::small_config;

constexpr int64_t kVocabulary = 13;
constexpr int64_t kHidden = 8;
constexpr int64_t kWide = 24;

struct Layout {
  int ranks;
  bool sequence_parallel = false;
  bool sequence_first = false;
};

AllConfig config_of(const Layout& layout, const Overrides& more = {}) {
  Overrides all = {concat("parallel_config.tensor_model_parallel_size=", layout.ranks),
                   "model_config.scaled_output_init=True"};
  if (layout.sequence_parallel) {
    all.emplace_back("parallel_config.sequence_parallel=True");
  }
  if (layout.sequence_first) {
    all.emplace_back("dataset_config.data_layout=SBH");
  }
  return small_config(testing::joined(all, more));
}

// table -> wide -> narrow, and the logits of the table's rows.
class Chain final : public nn::Module {
 public:
  Chain(const AllConfig& config,
        const ColumnParallelLinearOptions& column,
        const RowParallelLinearOptions& row)
      : table_(
            register_module<VocabParallelEmbedding>("table", "tok", kVocabulary, kHidden, config)),
        wide_(register_module<ColumnParallelLinear>(
            "wide", "w.wide", kHidden, kWide, config, column)),
        narrow_(register_module<RowParallelLinear>(
            "narrow", "w.narrow", kWide, kHidden, config, row)) {}
  std::string type_name() const override { return "Chain"; }
  Tensor forward(const Tensor& ids) const {
    return narrow_.forward(square(wide_.forward(table_.forward(ids)).output)).output;
  }
  const nn::Parameter& table() const { return table_.weight(); }

 private:
  VocabParallelEmbedding& table_;
  ColumnParallelLinear& wide_;
  RowParallelLinear& narrow_;
};

struct Outcome {
  Tensor y;
  testing::State values, gradients;
};

Tensor ids_of(const AllConfig& config) {
  const Tensor ids = randint(0, kVocabulary, {2, 8}, kInt64, RandomKey{3, 1, 0});
  return config.dataset_config.data_layout == "SBH" ? ids.transpose(0, 1).contiguous() : ids;
}

const InitMethod kBias = InitMethod::normal(0.5);

Outcome run(const AllConfig& config, bool gathered) {
  random_context().seed = 9;
  const ColumnParallelLinearOptions column = {.gather_output = gathered, .bias_init = kBias};
  const RowParallelLinearOptions row = {.input_is_parallel = !gathered, .bias_init = kBias};
  Chain chain(config, column, row);
  const TensorParallelLayout layout = tensor_parallel_layout(config);
  Outcome out;
  Tensor y = chain.forward(ids_of(config));
  // Of every element another gradient; a rank has that of its piece of the sequence.
  Shape whole = y.shape();
  if (layout.sequence_axis) {
    whole[*layout.sequence_axis] *= layout.size;
  }
  const Tensor dy = normal(0, 1, whole, kFloat32, RandomKey{3, 2, 0});
  if (layout.sequence_axis) {
    const int64_t axis = *layout.sequence_axis;
    const int64_t own = y.size(axis);
    y.backward(dy.slice(axis, layout.rank * own, (layout.rank + 1) * own).contiguous());
  } else {
    y.backward(dy);
  }
  for (const auto& entry : chain.named_parameters()) {
    if (entry.parameter->flags().tp == nn::TensorParallel::kPartial) {
      layout.group->all_reduce(entry.parameter->grad());
    }
  }
  out.y = y.detach();
  out.values = get_logical_state(chain);
  out.gradients = logical_gradients(chain);
  return out;
}

class NamedLayers : public ::testing::TestWithParam<Layout> {};

TEST_P(NamedLayers, AreThoseOfOneProcess) {
  for (const bool gathered : {false, true}) {
    if (gathered && GetParam().sequence_parallel) {
      continue;  // refused: NamedLayerErrors
    }
    const Outcome single =
        run(config_of({.ranks = 1, .sequence_first = GetParam().sequence_first}), gathered);
    // Names and global shapes, whatever the layout.
    EXPECT_EQ(single.values.at("tok.weight").shape(), (Shape{kVocabulary, kHidden}));
    EXPECT_EQ(single.values.at("w.wide.weight").shape(), (Shape{kWide, kHidden}));
    EXPECT_EQ(single.values.at("w.wide.bias").shape(), (Shape{kWide}));
    EXPECT_EQ(single.values.at("w.narrow.weight").shape(), (Shape{kHidden, kWide}));
    EXPECT_EQ(single.values.at("w.narrow.bias").shape(), (Shape{kHidden}));
    EXPECT_GT(testing::largest(single.values.at("w.wide.bias")), 0);
    run_parallel(GetParam().ranks, {.tensor_model_parallel_size = GetParam().ranks}, [&] {
      const AllConfig config = config_of(GetParam());
      const Outcome found = run(config, gathered);
      const TensorParallelLayout layout = tensor_parallel_layout(config);
      Tensor expected = single.y;
      if (layout.sequence_axis) {
        const int64_t axis = *layout.sequence_axis;
        const int64_t own = expected.size(axis) / layout.size;
        expected = expected.slice(axis, layout.rank * own, (layout.rank + 1) * own);
      }
      EXPECT_LE(distance(found.y, expected.contiguous()), 2e-6);
      if (layout.rank == 0) {
        testing::expect_states_equal(found.values, single.values);
        testing::expect_states_close(found.gradients, single.gradients, 1e-5);
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts,
                         NamedLayers,
                         ::testing::Values(Layout{1},
                                           Layout{2},
                                           Layout{4, false, true},
                                           Layout{2, true},
                                           Layout{4, true, true}),
                         [](const auto& info) {
                           return concat("tp", info.param.ranks,
                                         info.param.sequence_parallel ? "_sp" : "",
                                         info.param.sequence_first ? "_sbh" : "");
                         });

TEST(NamedLayers, AreTheFormula) {
  const AllConfig config = config_of({1});
  const Outcome out = run(config, false);
  const testing::State& w = out.values;
  const Tensor wide = linear(embedding(w.at("tok.weight"), ids_of(config)), w.at("w.wide.weight"),
                             w.at("w.wide.bias"));
  EXPECT_LE(distance(out.y, linear(square(wide), w.at("w.narrow.weight"), w.at("w.narrow.bias"))),
            2e-6);
}

TEST(NamedLayers, StartByTheConfiguration) {
  const AllConfig config = config_of({1}, {"model_config.init_method_std=0.5"});
  random_context().seed = 9;
  const auto deviation = [](const nn::Module& layer) {
    const Tensor w = layer.named_parameters()[0].parameter->detach();
    return std::sqrt(mean(square(w)).item());
  };
  const ColumnParallelLinear wide("w", 100, 100, config);
  const RowParallelLinear narrow("n", 100, 100, config);
  const RowParallelLinear own("o", 100, 100, config, {.init_method = InitMethod::normal(2)});
  EXPECT_NEAR(deviation(wide), 0.5, 0.02);
  EXPECT_NEAR(deviation(narrow), 0.25, 0.01);  // scaled_output_init of two layers
  EXPECT_NEAR(deviation(own), 2, 0.08);
  EXPECT_EQ(ColumnParallelLinear("w", 4, 4, config, {.bias = false}).named_parameters().size(), 1U);
  const auto skipped =
      RowParallelLinear("n", 4, 4, config, {.skip_bias_add = true}).forward(ones({1, 2, 4}));
  EXPECT_EQ(skipped.bias.shape(), Shape{4});
}

template <class F>
std::string error_of(const F& function) {
  try {
    function();
  } catch (const ValueError& error) {
    return error.what();
  }
  return "none";
}

TEST(NamedLayers, Errors) {
  using ::testing::HasSubstr;
  run_parallel(2, {.tensor_model_parallel_size = 2}, [] {
    const AllConfig config = config_of({2});
    EXPECT_THAT(error_of([&] { ColumnParallelLinear("mlp.up", 4, 5, config); }),
                HasSubstr("5 output features of mlp.up cannot be divided over 2"));
    EXPECT_THAT(error_of([&] { RowParallelLinear("mlp.down", 5, 4, config); }),
                HasSubstr("5 input features of mlp.down cannot be divided over 2"));
    EXPECT_THAT(error_of([&] {
                  ColumnParallelLinear("mlp.up", 4, 4, config,
                                       {.gather_output = true, .skip_bias_add = true});
                }),
                HasSubstr("mlp.up: "));
    EXPECT_THAT(
        error_of([&] {
          RowParallelLinear("mlp.down", 4, 4, config_of({2, true}), {.input_is_parallel = false});
        }),
        HasSubstr("mlp.down: with sequence_parallel"));
  });
}

TEST(ParallelLMLogits, OwnColumnsOrAllOfThem) {
  const Tensor hidden = normal(0, 1, {2, 8, 32}, kFloat32, RandomKey{3, 4, 0});
  const Overrides vocabulary = {"model_config.vocab_size=13"};
  const auto table = [&](const AllConfig& config) {
    random_context().seed = 9;
    return std::make_unique<VocabParallelEmbedding>("tok", 13, 32, config);
  };
  const AllConfig alone = config_of({1}, vocabulary);
  const Tensor expected = ParallelLMLogits(alone).forward(hidden, table(alone)->weight()).detach();
  EXPECT_EQ(expected.shape(), (Shape{2, 8, 13}));
  run_parallel(2, {.tensor_model_parallel_size = 2}, [&] {
    const AllConfig config = config_of({2}, vocabulary);
    const auto own_table = table(config);
    const ParallelLMLogits logits(config);
    const Tensor own = logits.forward(hidden, own_table->weight());
    EXPECT_EQ(own.shape(), (Shape{2, 8, 7}));  // the second rank has six and padding
    const Tensor all = logits.forward(hidden, own_table->weight(), /*parallel_output=*/false);
    EXPECT_LE(distance(all, expected), 2e-6);
    EXPECT_TRUE(same_bits(gather_vocabulary(own, 13, tensor_parallel_layout(config)), all));
  });
}

TEST(VocabParallelLogsumexp, IsThatOfTheWholeVocabulary) {
  for (const int64_t vocabulary : {12, 13, 5}) {  // of 5 the last of four ranks has none
    const Tensor logits = normal(0, 3, {3, 4, vocabulary}, kFloat64, RandomKey{5, 2, 0});
    const Tensor dz = normal(0, 1, {3, 4}, kFloat64, RandomKey{5, 3, 0});
    const Tensor x = logits.clone().set_requires_grad();
    const Tensor expected = vocab_parallel_logsumexp(x, vocabulary, {});
    EXPECT_LE(distance(expected, logsumexp(logits, {-1})), 1e-14);
    const Tensor gradient = grad(expected, {x}, dz)[0];
    run_parallel(4, {.tensor_model_parallel_size = 4}, [&] {
      const TensorParallelLayout tp = tensor_parallel_layout({}, false);
      const VocabularyShard shard = vocabulary_shard(vocabulary, tp.rank, tp.size);
      Tensor own = full({3, 4, shard.rows}, 50, kFloat64);  // padding does not count
      copy_values(logits.slice(-1, shard.first, shard.first + shard.valid),
                  own.slice(-1, 0, shard.valid));
      own.set_requires_grad();
      const Tensor found = vocab_parallel_logsumexp(own, vocabulary, tp);
      EXPECT_LE(distance(found, expected.detach()), 1e-13);
      const Tensor own_gradient = grad(found, {own}, dz)[0];
      EXPECT_LE(distance(own_gradient.slice(-1, 0, shard.valid),
                         gradient.slice(-1, shard.first, shard.first + shard.valid),
                         testing::largest(gradient)),
                1e-13);
      EXPECT_EQ(testing::largest(own_gradient.slice(-1, shard.valid, shard.rows)), 0);
      EXPECT_THROW(vocab_parallel_logsumexp(ones({3, shard.rows + 1}), vocabulary, tp), ValueError);
    });
  }
}

}  // namespace
}  // namespace named_layers_test
}  // namespace tapestry
