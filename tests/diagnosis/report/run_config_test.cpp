#include "diagnosis/report/run_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/tensor/error.h"
#include "parallel_core/config/show/render.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry::report {
namespace {

std::string model_yaml(const std::string& section, const std::string& lr) {
  return section +
         ":\n  hidden_size: 8  # default\n  num_attention_heads: 2  # run.yaml:3\n"
         "optimizer_config:\n  learning_rate: " +
         lr + "  # --set\n";
}

TEST(RunConfig, HasValuesAndWhereTheyCameFrom) {
  const auto entries = parse_config(
      "training_config:\n"
      "  seed: 7  # default\n"
      "  output_dir: \"a  # b\"  # run.yaml:2\n"
      "  grad_clip_kwargs:  # run.yaml:4\n"
      "    clip_value: 1.0  # run.yaml:5\n"
      "  epochs: null  # default\n"
      "  dump_grad_steps: [1, 2]  # --set\n"
      "  table: [[1, 2], [3]]\n"
      "moe_config:\n"
      "  cells: [{cell: a, rank: 4}]  # default\n",
      "config.yaml");
  ASSERT_EQ(entries.size(), 7U);
  EXPECT_EQ(entries[0].section, "training_config");
  EXPECT_EQ(entries[0].key, "seed");
  EXPECT_EQ(entries[0].value, "7");
  EXPECT_TRUE(entries[0].is_default());
  EXPECT_EQ(entries[1].value, "a  # b");
  EXPECT_EQ(entries[1].origin, "run.yaml:2");
  EXPECT_EQ(entries[2].key, "grad_clip_kwargs.clip_value");
  EXPECT_EQ(entries[2].origin, "run.yaml:5");
  EXPECT_EQ(entries[3].value, "null");
  EXPECT_EQ(entries[4].value, "[1, 2]");
  EXPECT_EQ(entries[5].value, "[[1, 2], [3]]");
  EXPECT_EQ(entries[5].origin, "");
  EXPECT_EQ(entries[6].value, "[{cell: a, rank: 4}]");
}

TEST(RunConfig, ReadsWhatRunsWrite) {
  const AllConfig config = init_configs_from_text(
      "training_config: {training_iters: 20, dump_grad_steps: [1, 3]}\n"
      "model_config:\n  vocab_size: 31\n  num_layers: 2\n  num_attention_heads: 4\n"
      "  hidden_size: 32\n  ffn_hidden_size: 48\n  seq_length: 8\n  rotary_config: {}\n",
      "small.yaml", {.overrides = {"optimizer_config.betas=[0.9, 0.95]"}});
  const std::vector<ConfigEntry> entries = parse_config(resolved_yaml(config), "config.yaml");
  const std::vector<ResolvedKey> keys = resolved_keys(config);
  size_t at = 0;
  for (const ResolvedKey& key : keys) {
    if (key.value.empty()) {
      continue;  // a mapping, whose entries follow
    }
    ASSERT_LT(at, entries.size());
    EXPECT_EQ(entries[at].section, key.section);
    EXPECT_EQ(entries[at].key, key.key);
    EXPECT_EQ(entries[at].origin, key.origin) << key.key;
    ++at;
  }
  EXPECT_EQ(at, entries.size());
}

TEST(RunConfig, OfSeveralRunsDiffersInValues) {
  const auto rows = compare_configs({parse_config(model_yaml("model_config", "0.001"), "a"),
                                     parse_config(model_yaml("gpt_config", "0.002"), "b")});
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0].section, "model_config");  // whatever the second run calls it
  EXPECT_EQ(rows[0].key, "hidden_size");
  EXPECT_FALSE(rows[0].differs);
  EXPECT_FALSE(rows[0].given);
  EXPECT_TRUE(rows[1].given);
  EXPECT_EQ(rows[2].key, "learning_rate");
  EXPECT_TRUE(rows[2].differs);
  EXPECT_EQ(rows[2].values[1], "0.002");
}

TEST(RunConfig, AKeyThatOneRunLacksDiffersAndStaysInItsSection) {
  const auto rows = compare_configs(
      {parse_config("a:\n  x: 1\nb:\n  z: 1\n", "a"), parse_config("a:\n  x: 1\n  y: 2\n", "b")});
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[1].key, "y");
  EXPECT_TRUE(rows[1].differs);
  EXPECT_FALSE(rows[1].values[0]);
  EXPECT_EQ(rows[2].section, "b");
  // A configuration that is not known differs in nothing.
  EXPECT_FALSE(compare_configs({parse_config("a:\n  x: 1\n", "a"), {}})[0].differs);
}

TEST(RunConfig, WhatIsNoneIsNamed) {
  EXPECT_ERROR(parse_config("- a\n- b\n", "x/config.yaml"), IoError, "x/config.yaml: holds no");
  EXPECT_ERROR(parse_config("a: [1\n", "x/config.yaml"), IoError, "x/config.yaml");
}

}  // namespace
}  // namespace tapestry::report
