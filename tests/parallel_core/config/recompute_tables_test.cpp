#include "parallel_core/config/recompute_tables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel_core/config/layer_split.h"
#include "tests/message_of.h"
#include "tests/says.h"

namespace tapestry {
namespace recompute_tables_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A configuration of so many layers, with lines of parallel_config.
AllConfig model(int64_t layers,
                const std::string& parallel,
                const std::vector<std::string>& overrides = {}) {
  return init_configs_from_text(
      concat("training_config: {training_iters: 1}\n"
             "dataset_config: {batch_size: 1, micro_batch_num: 16}\n"
             "optimizer_config: {learning_rate: 0.1}\n"
             "model_config: {vocab_size: 8, num_layers: ",
             layers,
             ", num_attention_heads: 1, hidden_size: 8, ffn_hidden_size: 8, seq_length: 8}\n"
             "parallel_config:\n",
             parallel),
      "f.yaml", {.overrides = overrides});
}

// The guide's layout and configuration.
const std::string kGuideLayout =
    "  pipeline_model_parallel_size: 5\n"
    "  virtual_pipeline_model_parallel_size: 2\n"
    "  offset: [[0, 1, 1, 1, 1], [1, 1, 1, 1, 0]]\n";
const std::string kGuide = kGuideLayout +
                           "recompute_config:\n"
                           "  recompute: [[2, 1, 0, 0, 0], [1, 0, 0, 0, 0]]\n"
                           "  select_recompute:\n"
                           "    'feed_forward\\.w1\\.activation\\.silu': True\n"
                           "    'feed_forward\\.mul': True\n"
                           "    'feed_forward\\.w1\\.matmul': [[1, 0, 0, 0, 0], [2, 1, 0, 0, 0]]\n"
                           "    'feed_forward\\.w3\\.matmul': [2, 1, 0, 0, 0]\n"
                           "  select_comm_recompute: ['ffn_norm\\.norm','attention_norm\\.norm']\n";

TEST(RecomputeTables, TheGuidesExample) {
  const AllConfig config = model(48, kGuide);
  EXPECT_THAT(config.unsupported, IsEmpty());
  EXPECT_EQ(
      recompute_config_text(config),
      "Formative layer_recompute: [[2, 1, 0, 0, 0], [1, 0, 0, 0, 0]]\n"
      "Formative select_recompute: {'feed_forward\\.w1\\.activation\\.silu': [[4, 5, 5, 5, 5], [5, "
      "5, 5, 5, 4]], 'feed_forward\\.mul': [[4, 5, 5, 5, 5], [5, 5, 5, 5, 4]], "
      "'feed_forward\\.w1\\.matmul': [[1, 0, 0, 0, 0], [2, 1, 0, 0, 0]], "
      "'feed_forward\\.w3\\.matmul': [[1, 1, 0, 0, 0], [1, 0, 0, 0, 0]]}\n"
      "Formative select_comm_recompute: {'ffn_norm\\.norm': [[4, 5, 5, 5, 5], [5, 5, 5, 5, 4]], "
      "'attention_norm\\.norm': [[4, 5, 5, 5, 5], [5, 5, 5, 5, 4]]}");
  std::vector<int64_t> full;
  std::vector<int64_t> w1;
  std::vector<int64_t> w3;
  int64_t mul = 0;
  const std::vector<LayerRecompute> layers = layer_recompute(config);
  const auto names = [](const std::vector<std::string>& patterns, const std::string& pattern) {
    return std::find(patterns.begin(), patterns.end(), pattern) != patterns.end();
  };
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto number = static_cast<int64_t>(i);
    if (layers[i].full) {
      full.push_back(number);
    }
    if (names(layers[i].select, "feed_forward\\.w1\\.matmul")) {
      w1.push_back(number);
    }
    if (names(layers[i].select, "feed_forward\\.w3\\.matmul")) {
      w3.push_back(number);
    }
    mul += !layers[i].full && names(layers[i].select, "feed_forward\\.mul") ? 1 : 0;
  }
  EXPECT_THAT(full, ElementsAre(0, 1, 4, 24));
  EXPECT_THAT(w1, ElementsAre(0, 24, 25, 29));
  EXPECT_THAT(w3, ElementsAre(0, 4, 24));
  EXPECT_EQ(mul, 44);
}

TEST(RecomputeTables, PlacementOfTheGuidesLayers) {
  const AllConfig config = model(48, kGuideLayout);
  EXPECT_EQ(
      layer_placement_text(layers_per_chunk(48, config.parallel_config)),
      "num_layers per stage: [[4, 5, 5, 5, 5], [5, 5, 5, 5, 4]]\n"
      "Accumulated num_layers per stage: [[4, 9, 14, 19, 24], [29, 34, 39, 44, 48]]\n"
      "Pipeline id list with start_stage: [0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3, "
      "3, 3, 4, 4, 4, 4, 4, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 4, 4, "
      "4, 4]\n"
      "Interleave id list: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, "
      "0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]");
}

TEST(RecomputeTables, UnevenStagesWithoutInterleaving) {
  const AllConfig config =
      model(61,
            "  pipeline_model_parallel_size: 16\n"
            "  offset: [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0]\n"
            "recompute_config: {recompute: [3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 3, 2, 0]}\n");
  EXPECT_THAT(recompute_config_text(config),
              HasSubstr("Formative layer_recompute: [[3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 3, 2, "
                        "0]]\nFormative select_recompute: {'feed_forward\\.mul': [[0, 0, 0, "));
  const std::vector<LayerRecompute> layers = layer_recompute(config);
  for (size_t i = 0; i < layers.size(); ++i) {
    EXPECT_EQ(layers[i].full, i <= 53 || i == 55 || i == 56) << i;
    EXPECT_THAT(layers[i].select, IsEmpty());
  }
}

TEST(RecomputeTables, NumbersOfAStageAreDealtOut) {
  using List = config::Value::List;
  const auto dealt = [](const LayerTable& counts, const std::vector<int64_t>& request) {
    return normalised_layers("recompute", {List(request.begin(), request.end())}, counts);
  };
  const LayerTable guide = {{4, 5, 5, 5, 5}, {5, 5, 5, 5, 4}};
  EXPECT_EQ(dealt(guide, {7, 9, 100, 3, 1}), (LayerTable{{4, 5, 5, 2, 1}, {3, 4, 5, 1, 0}}));
  EXPECT_EQ(dealt({{1, 3}, {4, 2}}, {4, 4}), (LayerTable{{1, 2}, {3, 2}}));
  EXPECT_EQ(dealt({{3, 2}, {2, 2}, {2, 3}}, {5, 4}), (LayerTable{{2, 2}, {2, 1}, {1, 1}}));
  const AllConfig config = model(14,
                                 "  pipeline_model_parallel_size: 2\n"
                                 "  virtual_pipeline_model_parallel_size: 3\n"
                                 "  offset: [[1, 0], [0, 0], [0, 1]]\n"
                                 "  recompute: [5, 4]\n");
  std::vector<int64_t> full;
  const std::vector<LayerRecompute> layers = layer_recompute(config);
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].full) {
      full.push_back(static_cast<int64_t>(i));
    }
  }
  EXPECT_THAT(full, ElementsAre(0, 1, 3, 4, 5, 6, 7, 9, 11));
}

TEST(RecomputeTables, BooleansStandForAllOrNone) {
  using List = config::Value::List;
  const LayerTable counts = {{2, 3}, {2, 1}};
  const auto table = [&](const config::Value& value) {
    return normalised_layers("recompute", {value}, counts);
  };
  EXPECT_EQ(table(true), counts);
  EXPECT_EQ(table(false), (LayerTable{{0, 0}, {0, 0}}));
  EXPECT_EQ(table(List{}), (LayerTable{{0, 0}, {0, 0}}));
  EXPECT_EQ(table(List{true, int64_t{1}}), (LayerTable{{2, 1}, {2, 0}}));
  EXPECT_EQ(table(List{true, List{false, int64_t{7}}}), (LayerTable{{2, 3}, {0, 1}}));
  EXPECT_EQ(table(List{List{true, int64_t{1}}, false}), (LayerTable{{2, 1}, {0, 0}}));
}

TEST(RecomputeTables, WithoutNamesTheUsualOnesAreMeant) {
  const AllConfig config = model(2, "  recompute_config: {select_recompute: [1]}\n");
  EXPECT_EQ(recompute_config_text(config),
            "Formative layer_recompute: [[0]]\n"
            "Formative select_recompute: {'feed_forward\\.mul': [[1]], "
            "'feed_forward\\.w1\\.activation\\.silu': [[1]]}\n"
            "Formative select_comm_recompute: {'.*\\.norm': [[0]]}");
  EXPECT_THAT(layer_recompute(config)[0].select,
              ElementsAre("feed_forward\\.mul", "feed_forward\\.w1\\.activation\\.silu"));
  EXPECT_THAT(layer_recompute(config)[1].select, IsEmpty());
}

TEST(RecomputeTables, ABooleanInPlaceOfTheBlockPrintsNothing) {
  for (const char* spelling : {"  recompute_config: True\n", "recompute_config: True\n"}) {
    const AllConfig config = model(3, spelling);
    EXPECT_EQ(recompute_config_text(config), "");
    EXPECT_TRUE(layer_recompute(config)[2].full);
  }
  EXPECT_THAT(recompute_config_text(model(3, "recompute_config: {recompute: True}\n")),
              HasSubstr("Formative layer_recompute: [[3]]"));
  EXPECT_EQ(recompute_config_text(model(3, "  zero_level: null\n")), "");
}

TEST(RecomputeTables, LayersByNumber) {
  const AllConfig config =
      model(4,
            "recompute_config:\n  recompute_layers: [1, 3]\n"
            "  select_recompute: ['attention\\.wo']\n  select_recompute_layers: [0, 1]\n");
  const std::vector<LayerRecompute> layers = layer_recompute(config);
  EXPECT_FALSE(layers[0].full);
  EXPECT_TRUE(layers[1].full && layers[3].full);
  EXPECT_THAT(layers[0].select, ElementsAre("attention\\.wo"));
  EXPECT_THAT(layers[2].select, IsEmpty());
  EXPECT_THAT(
      layer_recompute(model(4, "recompute_config: {select_recompute_layers: [2]}\n"))[2].select,
      ElementsAre("feed_forward\\.mul", "feed_forward\\.w1\\.activation\\.silu"));
}

TEST(RecomputeTables, WhatIsExcludedIsNotSelected) {
  const AllConfig config =
      model(2,
            "recompute_config:\n  recompute: [1]\n  select_recompute: ['a\\.b', 'c']\n"
            "  select_recompute_exclude: ['a\\.b']\n");
  EXPECT_THAT(layer_recompute(config)[1].select, ElementsAre("c"));
  EXPECT_THAT(layer_recompute(config)[0].exclude, ElementsAre("a\\.b"));
  EXPECT_THAT(recompute_config_text(config), Says("\nselect_recompute: 'a\\.b' ... excluded"));
  EXPECT_THAT(recompute_config_text(config),
              HasSubstr("\nFormative select_recompute_exclude: {'a\\.b': [[2]]}"));
}

TEST(RecomputeTables, KeysOfTheModel) {
  const auto of = [](std::vector<std::string> keys, const std::string& parallel = "") {
    for (std::string& key : keys) {
      key = "model_config." + key;
    }
    return layer_recompute(model(5, "  zero_level: null\n" + parallel, keys));
  };
  EXPECT_FALSE(recomputes(of({})));
  const auto groups =
      of({"recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=2"});
  const auto blocks =
      of({"recompute_granularity=full", "recompute_method=block", "recompute_num_layers=2"});
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_TRUE(groups[i].full);
    EXPECT_EQ(groups[i].keeps_input, i % 2 == 0);
    EXPECT_EQ(blocks[i].full, i < 2);
    EXPECT_TRUE(blocks[i].keeps_input);
  }
  EXPECT_TRUE(of({"recompute_granularity=full"})[4].full);
  for (const char* key :
       {"recompute_granularity=selective", "recompute_activations=True", "select_recompute=True"}) {
    EXPECT_THAT(of({key})[0].select, ElementsAre("attention\\.core_attention"));
    EXPECT_THAT(of({key, "use_flash_attention=True"})[0].select,
                ::testing::Contains("feed_forward\\.mul"));
  }
  EXPECT_THAT(of({"select_comm_recompute=True"})[0].select_comm, ElementsAre(".*\\.norm"));
  EXPECT_TRUE(
      of({"recompute_granularity=full", "distribute_saved_activations=True"})[0].slices_input);
  const auto counted = of({"recompute_granularity=full"}, "  recompute: [1]\n");
  EXPECT_TRUE(counted[0].full);
  EXPECT_FALSE(counted[1].full);
}

TEST(RecomputeTables, SaysWhatCannotBe) {
  const auto message = [](const std::string& parallel) {
    return message_of<ConfigError>(
        [&] { model(4, "  pipeline_model_parallel_size: 2\n" + parallel); });
  };
  const std::string illegal = "Illegal input list for select_recompute: ";
  EXPECT_THAT(message("  recompute: 3\n"), HasSubstr(illegal + "3"));
  EXPECT_THAT(message("  recompute: [a, b]\n"), HasSubstr(illegal + "[a, b]"));
  EXPECT_THAT(message("  select_recompute: [a, 1]\n"), HasSubstr(illegal + "[a, 1]"));
  EXPECT_THAT(message("  select_recompute: {a: b}\n"), HasSubstr(illegal + "{a: b}"));
  EXPECT_THAT(message("  recompute: [[1, 0], 2]\n"), HasSubstr(illegal + "[[1, 0], 2]"));
  EXPECT_THAT(message("  recompute: {a: True}\n"), HasSubstr(illegal + "{a: True}"));
  EXPECT_THAT(message("  recompute: [1, -1]\n"), HasSubstr("cannot be negative, got -1"));
  EXPECT_THAT(message("  select_recompute: {a: [[1, -2]]}\n"), HasSubstr("got -2"));
  EXPECT_THAT(message("  recompute: [1]\n"),
              HasSubstr("recompute has 1 number(s); the pipeline has 2"));
  EXPECT_THAT(message("  recompute: [[1, 0], [0, 0]]\n"),
              HasSubstr("recompute has 2 row(s); the pipeline has 1"));
  EXPECT_THAT(message("  recompute: [[1]]\n"), HasSubstr("recompute has 1 number(s)"));
  EXPECT_THAT(message("  select_recompute: {'a\\.b': [1]}\n"),
              HasSubstr("select_recompute, a\\.b, has 1 number(s)"));
  EXPECT_THAT(message("  select_recompute: ['a\\.(']\n"),
              Says("'(' ... 'a\\.(' ... no regular expression"));
  EXPECT_THAT(message("  select_recompute: ['a\\.']\n"), HasSubstr("has an empty part"));
  EXPECT_THAT(message("  recompute_config: {recompute_layers: [4]}\n"),
              HasSubstr("recompute_layers: layer 4 is not one of 0 to 3"));
  EXPECT_THAT(message("  recompute_config: {recompute: True, recompute_layers: [1]}\n"),
              HasSubstr("keep one"));
}

TEST(RecomputeTables, PartsOfPatterns) {
  EXPECT_THAT(parts_of_pattern("feed_forward\\.w1\\.matmul"),
              ElementsAre("feed_forward", "w1", "matmul"));
  EXPECT_THAT(parts_of_pattern(".*\\.norm"), ElementsAre(".*", "norm"));
  EXPECT_THAT(parts_of_pattern("a.b"), ElementsAre("a.b"));
}

}  // namespace
}  // namespace recompute_tables_test
}  // namespace tapestry
