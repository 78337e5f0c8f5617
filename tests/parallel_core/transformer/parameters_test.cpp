// Names, shapes, flags and start values of the model's parameters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/tensor/error.h"
#include "parallel_core/dist_checkpointing/logical_state.h"
#include "parallel_core/parameter_builder.h"
#include "parallel_core/transformer/attention.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace {

using testing::Overrides;
using testing::small_config;
using testing::State;
using testing::Trainer;

const std::string kModel = "model_config.";

std::map<std::string, Shape> shapes_of(const Overrides& overrides) {
  const auto model = get_model(small_config(overrides));
  std::map<std::string, Shape> out;
  for (const auto& [name, tensor] : get_logical_state(*model)) {
    out[name] = tensor.shape();
  }
  return out;
}

Tensor parameter(const nn::Module& model, const std::string& name) {
  for (const auto& entry : model.named_parameters()) {
    if (entry.name == name) {
      return *entry.parameter;
    }
  }
  ADD_FAILURE() << "no parameter " << name;
  return {};
}

TEST(Parameters, NamesAndShapesOfAGpt2) {
  std::map<std::string, Shape> expected = {{"tok_embeddings.weight", {31, 32}},
                                           {"pos_embeddings.weight", {9, 32}},
                                           {"final_norm.weight", {32}},
                                           {"final_norm.bias", {32}}};
  for (const std::string layer : {"layers.0.", "layers.1."}) {
    for (const std::string norm : {"attention_norm", "ffn_norm"}) {
      expected[layer + norm + ".weight"] = {32};
      expected[layer + norm + ".bias"] = {32};
    }
    for (const std::string matrix : {"wq", "wk", "wv", "wo"}) {
      expected[layer + "attention." + matrix + ".weight"] = {32, 32};
      expected[layer + "attention." + matrix + ".bias"] = {32};
    }
    expected[layer + "feed_forward.w_up.weight"] = {48, 32};
    expected[layer + "feed_forward.w_up.bias"] = {48};
    expected[layer + "feed_forward.w_down.weight"] = {32, 48};
    expected[layer + "feed_forward.w_down.bias"] = {32};
  }
  EXPECT_EQ(shapes_of({kModel + "max_position_embeddings=9"}), expected);
}

TEST(Parameters, NamesAndShapesWithGroupsWideHeadsAndGate) {
  std::map<std::string, Shape> expected = {{"tok_embeddings.weight", {31, 32}},
                                           {"final_norm.weight", {32}},
                                           {"lm_head.weight", {31, 32}}};
  const std::string layer = "layers.0.";
  for (const std::string norm :
       {"attention_norm", "ffn_norm", "attention_post_norm", "ffn_post_norm"}) {
    expected[layer + norm + ".weight"] = {32};
  }
  expected[layer + "attention.wq.weight"] = {48, 32};
  expected[layer + "attention.wk.weight"] = {24, 32};
  expected[layer + "attention.wv.weight"] = {24, 32};
  expected[layer + "attention.wq.bias"] = {48};
  expected[layer + "attention.wk.bias"] = {24};
  expected[layer + "attention.wv.bias"] = {24};
  expected[layer + "attention.q_norm.weight"] = {12};
  expected[layer + "attention.k_norm.weight"] = {12};
  expected[layer + "attention.wo.weight"] = {32, 48};
  expected[layer + "feed_forward.w_gate.weight"] = {48, 32};
  expected[layer + "feed_forward.w_up.weight"] = {48, 32};
  expected[layer + "feed_forward.w_down.weight"] = {32, 48};
  EXPECT_EQ(
      shapes_of({kModel + "num_layers=1", kModel + "kv_channels=12", kModel + "qk_layernorm=True",
                 kModel + "group_query_attention=True", kModel + "num_query_groups=2",
                 kModel + "hidden_act=swiglu", kModel + "normalization=RMSNorm",
                 kModel + "add_bias_linear=False", kModel + "qkv_has_bias=True",
                 kModel + "position_embedding_type=rope", kModel + "use_sandwich_norm=True",
                 kModel + "untie_embeddings_and_output_weights=True"}),
      expected);
}

TEST(Parameters, ZeroCenteredGainsStartAtTheirGainLess1) {
  const auto model = get_model(small_config(
      {kModel + "layernorm_zero_centered_gamma=True", kModel + "use_sandwich_norm=True",
       kModel + "ffn_post_norm_scale=0.25", kModel + "qk_layernorm=True"}));
  const State state = get_logical_state(*model);
  const auto first = [&](const char* name) { return state.at(name).to_vector<float>().front(); };
  EXPECT_EQ(first("final_norm.weight"), 0.0F);
  EXPECT_EQ(first("layers.0.attention.q_norm.weight"), 0.0F);
  EXPECT_EQ(first("layers.1.ffn_post_norm.weight"), -0.75F);
}

TEST(Parameters, InMemoryPaths) {
  const auto model = get_model(
      small_config({kModel + "num_layers=1", kModel + "untie_embeddings_and_output_weights=True",
                    kModel + "qk_layernorm=True"}));
  std::vector<std::string> names;
  for (const auto& entry : model->named_parameters()) {
    names.push_back(entry.name);
  }
  const std::string m = "language_model.";
  const std::string layer = m + "encoder.layers.0.";
  EXPECT_THAT(names,
              ::testing::UnorderedElementsAre(
                  m + "embedding.word_embeddings.weight",
                  m + "embedding.position_embeddings.embedding_table", layer + "input_norm.gamma",
                  layer + "input_norm.beta", layer + "attention.qkv_proj.weight",
                  layer + "attention.qkv_proj.bias", layer + "attention.q_norm.gamma",
                  layer + "attention.q_norm.beta", layer + "attention.k_norm.gamma",
                  layer + "attention.k_norm.beta", layer + "attention.out_proj.weight",
                  layer + "attention.out_proj.bias", layer + "post_attention_norm.gamma",
                  layer + "post_attention_norm.beta", layer + "mlp.mapping.weight",
                  layer + "mlp.mapping.bias", layer + "mlp.projection.weight",
                  layer + "mlp.projection.bias", m + "encoder.final_norm.gamma",
                  m + "encoder.final_norm.beta", m + "output_layer.weight"));
}

// Rows of the fused projection lie by group: its queries, its key, its value.
TEST(Parameters, RowsOfTheFusedProjections) {
  const auto model =
      get_model(small_config({kModel + "num_layers=1", kModel + "group_query_attention=True",
                              kModel + "num_query_groups=2", kModel + "hidden_act=swiglu"}));
  testing::jitter(*model);
  const State state = get_logical_state(*model);
  const std::string memory = "language_model.encoder.layers.0.";
  const std::string logical = "layers.0.attention.";
  const int64_t d = 8;
  for (const std::string kind : {"weight", "bias"}) {
    const Tensor fused = parameter(*model, memory + "attention.qkv_proj." + kind);
    for (int64_t group = 0; group < 2; ++group) {
      const int64_t first = group * 4 * d;
      const auto expect_rows = [&](int64_t begin, int64_t rows, const char* name, int64_t from) {
        EXPECT_TRUE(
            testing::same_bits(fused.detach().slice(0, begin, begin + rows),
                               state.at(logical + name + "." + kind).slice(0, from, from + rows)))
            << name << " " << kind << " of group " << group;
      };
      expect_rows(first, 2 * d, "wq", group * 2 * d);
      expect_rows(first + 2 * d, d, "wk", group * d);
      expect_rows(first + 3 * d, d, "wv", group * d);
    }
    const Tensor mapping = parameter(*model, memory + "mlp.mapping." + kind);
    EXPECT_TRUE(testing::same_bits(mapping.detach().slice(0, 0, 48),
                                   state.at("layers.0.feed_forward.w_gate." + kind)));
    EXPECT_TRUE(testing::same_bits(mapping.detach().slice(0, 48, 96),
                                   state.at("layers.0.feed_forward.w_up." + kind)));
  }
}

TEST(Parameters, TensorParallelFlags) {
  const auto model = get_model(small_config({kModel + "untie_embeddings_and_output_weights=True"}));
  const std::map<std::string, int64_t> sharded = {
      {"word_embeddings.weight", 0}, {"qkv_proj.weight", 0},    {"qkv_proj.bias", 0},
      {"mapping.weight", 0},         {"mapping.bias", 0},       {"out_proj.weight", 1},
      {"projection.weight", 1},      {"output_layer.weight", 0}};
  for (const auto& entry : model->named_parameters()) {
    const nn::ParameterFlags& flags = entry.parameter->flags();
    const auto axis = std::find_if(sharded.begin(), sharded.end(),
                                   [&](const auto& e) { return entry.name.ends_with(e.first); });
    if (axis == sharded.end()) {
      EXPECT_EQ(flags.tp, nn::TensorParallel::kReplicated) << entry.name;
    } else {
      EXPECT_EQ(flags.tp, nn::TensorParallel::kSharded) << entry.name;
      EXPECT_EQ(flags.tp_axis, axis->second) << entry.name;
    }
    EXPECT_FALSE(flags.shared) << entry.name;
    EXPECT_FALSE(flags.expert) << entry.name;
  }
}

TEST(Initialisation, EveryWeightIsItsNamesStream) {
  const AllConfig config =
      small_config({kModel + "group_query_attention=True", kModel + "num_query_groups=2",
                    kModel + "hidden_act=swiglu", kModel + "num_layers=3"});
  for (const auto& [name, tensor] : get_logical_state(*get_model(config))) {
    if (name.ends_with(".bias")) {
      EXPECT_EQ(testing::largest(tensor), 0) << name;
    } else if (name.find("norm") != std::string::npos) {
      EXPECT_TRUE(testing::same_bits(tensor, ones(tensor.shape()))) << name;
    } else {
      const Tensor expected =
          normal(0, 0.1, tensor.shape(), kFloat32, RandomKey{7, stream_of(name), 0});
      EXPECT_TRUE(testing::same_bits(tensor, expected)) << name;
    }
  }
}

TEST(Initialisation, DoesNotDependOnOtherParametersOrThreads) {
  const Overrides wide = {kModel + "vocab_size=1031", kModel + "ffn_hidden_size=1024"};
  Overrides other = wide;
  for (const char* more : {"num_layers=4", "position_embedding_type=rope", "normalization=RMSNorm",
                           "add_bias_linear=False", "untie_embeddings_and_output_weights=True"}) {
    other.push_back(kModel + more);
  }
  const int threads = num_threads();
  set_num_threads(1);
  const State one = get_logical_state(*get_model(small_config(wide)));
  set_num_threads(2);
  const State two = get_logical_state(*get_model(small_config(wide)));
  const State larger = get_logical_state(*get_model(small_config(other)));
  set_num_threads(threads);
  testing::expect_states_equal(two, one);
  int64_t compared = 0;
  for (const auto& [name, tensor] : larger) {
    if (one.contains(name)) {
      EXPECT_TRUE(testing::same_bits(tensor, one.at(name))) << name;
      ++compared;
    }
  }
  EXPECT_EQ(compared, 1 + 2 * 8 + 1);
}

TEST(Initialisation, SeedsAndNamesDiffer) {
  const State a = get_logical_state(*get_model(small_config()));
  const State b = get_logical_state(*get_model(small_config({"training_config.seed=8"})));
  EXPECT_FALSE(testing::same_bits(a.at("tok_embeddings.weight"), b.at("tok_embeddings.weight")));
  EXPECT_FALSE(testing::same_bits(a.at("layers.0.attention.wq.weight"),
                                  a.at("layers.1.attention.wq.weight")));
  EXPECT_FALSE(testing::same_bits(a.at("layers.0.attention.wq.weight"),
                                  a.at("layers.0.attention.wk.weight")));
}

TEST(Initialisation, DeviationsAndScales) {
  const auto deviation = [](const Tensor& x) { return std(x).item(); };
  for (const bool scaled : {false, true}) {
    const State state = get_logical_state(
        *get_model(small_config({kModel + "hidden_size=96", kModel + "ffn_hidden_size=128",
                                 kModel + "num_layers=8", kModel + "init_method_std=0.02",
                                 kModel + "scaled_output_init=" + (scaled ? "True" : "False")})));
    const double output = scaled ? 0.02 / 4 : 0.02;  // sqrt(2 * 8) = 4
    EXPECT_NEAR(deviation(state.at("layers.5.attention.wo.weight")), output, 0.04 * output);
    EXPECT_NEAR(deviation(state.at("layers.5.feed_forward.w_down.weight")), output, 0.04 * output);
    EXPECT_NEAR(deviation(state.at("layers.5.attention.wq.weight")), 0.02, 0.0008);
    EXPECT_NEAR(deviation(state.at("layers.5.feed_forward.w_up.weight")), 0.02, 0.0008);
    EXPECT_NEAR(deviation(state.at("tok_embeddings.weight")), 0.02, 0.0015);
    EXPECT_NEAR(mean(state.at("layers.5.feed_forward.w_up.weight")).item(), 0, 0.0006);
  }
  const State sandwich = get_logical_state(*get_model(
      small_config({kModel + "use_sandwich_norm=True", kModel + "attn_post_norm_scale=0.5",
                    kModel + "ffn_post_norm_scale=0.25"})));
  EXPECT_EQ(sandwich.at("layers.1.attention_post_norm.weight").at({3}), 0.5);
  EXPECT_EQ(sandwich.at("layers.1.ffn_post_norm.weight").at({3}), 0.25);
  EXPECT_EQ(sandwich.at("layers.1.ffn_norm.weight").at({3}), 1.0);
}

TEST(ParallelAttention, HeadsMustBeAMultipleOfTheGroups) {
  TransformerConfig config = small_config().model_config;
  config.num_query_groups = 3;
  EXPECT_THROW(ParallelAttention(config, 1, false), ValueError);
}

// A slice of a matrix [6, 10] of normal numbers, cut out of a parameter that has further rows.
LogicalInit slice_init(const Shape& offset, const Shape& local, int64_t rows) {
  LogicalInit init = whole("m.weight", {6, 10}, InitMethod::normal(0.5));
  init.logical.view_shape = {rows, local[1]};
  init.logical.end = local[0];
  init.logical.offset = offset;
  init.logical.slice_shape = local;
  return init;
}

TEST(InitialValue, ASliceHasTheNumbersOfTheWhole) {
  random_context().seed = 5;
  const LogicalInit all = whole("m.weight", {6, 10}, InitMethod::normal(0.5));
  const Tensor global = initial_value({6, 10}, {all});
  EXPECT_FALSE(all.logical.is_slice());
  struct Cut {
    Shape offset;
    Shape local;
  };
  const std::vector<Cut> cuts = {
      {{2, 0}, {3, 10}}, {{0, 3}, {6, 5}}, {{1, 7}, {4, 3}}, {{5, 9}, {1, 1}}, {{6, 0}, {0, 10}}};
  for (const Cut& cut : cuts) {
    const LogicalInit part = slice_init(cut.offset, cut.local, cut.local[0] + 1);
    EXPECT_TRUE(part.logical.is_slice());
    const Tensor value = initial_value({cut.local[0] + 1, cut.local[1]}, {part});
    const Tensor expected = global.slice(0, cut.offset[0], cut.offset[0] + cut.local[0])
                                .slice(1, cut.offset[1], cut.offset[1] + cut.local[1]);
    EXPECT_TRUE(testing::same_bits(part.logical.view_of(value), expected)) << cut.offset;
    EXPECT_TRUE(testing::same_bits(part.logical.slice_of(global), expected)) << cut.offset;
    // What belongs to no logical tensor.
    EXPECT_EQ(testing::largest(value.slice(0, cut.local[0], cut.local[0] + 1)), 0);
  }
}

TEST(InitialValue, OfGivenNumbers) {
  LogicalInit init = whole("b.bias", {4}, InitMethod::numbers({3, 1, 4, 1.5}));
  EXPECT_EQ(initial_value({4}, {init}).to_vector<float>(), (std::vector<float>{3, 1, 4, 1.5}));
  init.logical.view_shape = init.logical.slice_shape = {2};
  init.logical.end = 2;
  init.logical.offset = {1};
  EXPECT_EQ(initial_value({2}, {init}).to_vector<float>(), (std::vector<float>{1, 4}));
  const LogicalInit few = whole("b.bias", {4}, InitMethod::numbers({3, 1}));
  EXPECT_THROW(initial_value({4}, {few}), ValueError);
}

// Every kind is a function of the place in the global matrix, and spreads as it says.
TEST(InitialValue, EveryInitMethod) {
  using Kind = InitMethod::Kind;
  random_context().seed = 5;
  struct Case {
    InitMethod init;
    double std;
    double limit;  // no number is larger; 0: some are larger than three deviations
  };
  const double n = 300;  // in, of a matrix [200, 300]
  for (const Case& c :
       {Case{{Kind::kNormal, 0.1}, 0.1, 0}, Case{{Kind::kTruncatedNormal, 0.1}, 0.08796, 0.2},
        Case{{Kind::kUniform, 0.1}, 0.1, 0.1 * std::sqrt(3)},
        Case{{Kind::kXavierUniform, 1}, std::sqrt(2.0 / 500), std::sqrt(6.0 / 500)},
        Case{{Kind::kHeUniform, 0.5}, 0.5 * std::sqrt(2 / n), 0.5 * std::sqrt(6 / n)},
        Case{{Kind::kHeNormal, 1}, std::sqrt(2 / n), 0}}) {
    const LogicalInit all = whole("m.weight", {200, 300}, c.init);
    const Tensor global = initial_value({200, 300}, {all});
    // Of 60,000 numbers mean and deviation are off by less than five of their own deviations.
    EXPECT_NEAR(mean(global).item(), 0, 5 * c.std / std::sqrt(6e4));
    EXPECT_NEAR(std::sqrt(mean(square(global)).item()), c.std, 5 * c.std / std::sqrt(6e4));
    if (c.limit > 0) {
      EXPECT_LE(testing::largest(global), c.limit);
      EXPECT_GE(testing::largest(global), 0.99 * c.limit);
    } else {
      EXPECT_GT(testing::largest(global), 3 * c.std);
    }
    LogicalInit part = all;
    part.logical.offset = {57, 0};
    part.logical.slice_shape = {31, 300};
    part.logical.view_shape = {31, 300};
    part.logical.end = 31;
    EXPECT_TRUE(testing::same_bits(initial_value({31, 300}, {part}), global.slice(0, 57, 88)));
  }
  EXPECT_THROW(initial_value({4}, {whole("b", {4}, {Kind::kHeNormal, 1})}), ValueError);
}

TEST(InitialValue, ByConfiguration) {
  const auto weights = [](const testing::Overrides& overrides) {
    return get_logical_state(*get_model(small_config(overrides)));
  };
  const std::string wq = "layers.0.attention.wq.weight";
  const std::string wo = "layers.0.attention.wo.weight";
  const State xavier = weights({kModel + "init_method=xavier_uniform",
                                kModel + "scaled_output_init=True", kModel + "bias_init=0.25"});
  EXPECT_LE(testing::largest(xavier.at(wq)), std::sqrt(6.0 / 64));
  EXPECT_GE(testing::largest(xavier.at(wq)), 0.9 * std::sqrt(6.0 / 64));
  EXPECT_LE(testing::largest(xavier.at(wo)), 0.5 * std::sqrt(6.0 / 64));  // two layers
  EXPECT_EQ(xavier.at("layers.1.feed_forward.w_up.bias").at({7}), 0.25);
  const State ones = weights({kModel + "init_method=ones", kModel + "bias_init=normal"});
  EXPECT_EQ(ones.at("tok_embeddings.weight").at({3, 5}), 1.0);
  EXPECT_GT(testing::largest(ones.at("layers.0.attention.wq.bias")), 0.05);
  EXPECT_EQ(weights({kModel + "init_method=0.5"}).at(wq).at({1, 2}), 0.5);
}

TEST(InitialValue, ASliceThatDoesNotFitIsAnError) {
  const LogicalInit part = slice_init({2, 0}, {3, 10}, 4);
  EXPECT_THROW(initial_value({3, 10}, {part}), ValueError);  // view_shape has other elements
  EXPECT_THROW(part.logical.slice_of(zeros({3, 10})), ValueError);
  EXPECT_THROW(slice_init({4, 0}, {3, 10}, 4).logical.slice_of(zeros({6, 10})), ValueError);
  EXPECT_THROW(slice_init({4}, {3, 10}, 4).logical.slice_of(zeros({6, 10})), ValueError);
}

}  // namespace
}  // namespace tapestry
