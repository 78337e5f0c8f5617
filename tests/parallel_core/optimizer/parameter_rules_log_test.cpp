#include "parallel_core/training/log/parameter_rules_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel_core/training/log/logging.h"
#include "tests/parallel_core/model_families.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/temp_dir.h"

namespace tapestry::parameter_rules_log_test {
namespace {

using data::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::joined;
using ::testing::Not;
using testing::Overrides;
using testing::small_config;

std::vector<std::string> logs_of(int ranks,
                                 const ModelParallelSizes& sizes,
                                 const Overrides& overrides) {
  const TempDir dir;
  const AllConfig config = small_config(testing::llama(overrides));
  testing::run_parallel(ranks, sizes, [&] {
    open_logs(dir.file("out"));
    log_parameter_rules(config, *get_model(config));
    close_logs();
  });
  std::vector<std::string> out;
  for (int rank = 0; rank < ranks; ++rank) {
    out.push_back(dir.read(concat("out/log/rank_", rank, "/info.log")));
  }
  return out;
}

const std::string kOptimizer = "optimizer_config.";

TEST(ParameterRulesLog, ALineForEachParameter) {
  const Overrides rules = {kOptimizer + "weight_decay=0.25", testing::kUntied,
                           kOptimizer + "weight_decay_include=[linear_qkv, nrom]",
                           kOptimizer + "weight_decay_exclude=['decoder.layers.1.*']"};
  const std::string one = logs_of(1, {}, rules)[0];
  EXPECT_THAT(one, HasSubstr("layers.1.attention.qkv_proj.weight: weight decay 0.25, "
                             "weight_decay_include: linear_qkv\n"));
  EXPECT_THAT(one, HasSubstr("layers.1.attention.out_proj.weight: weight decay 0, "
                             "weight_decay_exclude: decoder.layers.1.*\n"));
  EXPECT_THAT(one, HasSubstr("layers.0.attention.out_proj.weight: weight decay 0.25, no rule\n"));
  EXPECT_THAT(one, HasSubstr("final_norm.weight: weight decay 0, a vector\n"));
  EXPECT_THAT(one, HasSubstr("optimizer_config.weight_decay_include: 'nrom' matches no parameter"));
  EXPECT_THAT(one, AllOf(Not(HasSubstr("'linear_qkv' matches no")), Not(HasSubstr("AdamW"))));
}

// What another stage has is a match, too.
TEST(ParameterRulesLog, RulesAreOfTheWholeModel) {
  const Overrides rules = {kOptimizer + "optimizer_type=Muon",
                           kOptimizer + "adamw_include=[layers.1, output_layer, layers.2]",
                           testing::kUntied, "parallel_config.pipeline_model_parallel_size=2"};
  const std::vector<std::string> logs = logs_of(2, {.pipeline_model_parallel_size = 2}, rules);
  EXPECT_THAT(logs[0], HasSubstr("layers.0.mlp.mapping.weight: Muon, no rule\n"));
  EXPECT_THAT(logs[1], HasSubstr("layers.1.mlp.mapping.weight: AdamW, adamw_include: layers.1\n"));
  EXPECT_THAT(logs[1], Not(HasSubstr("layers.0.")));
  for (const std::string& log : logs) {
    EXPECT_THAT(log, HasSubstr("optimizer_config.adamw_include: 'layers.2' matches no parameter"));
    EXPECT_THAT(
        log, AllOf(Not(HasSubstr("'layers.1' matches")), Not(HasSubstr("'output_layer' matches")),
                   Not(HasSubstr("weight decay"))));
  }
}

TEST(ParameterRulesLog, WithoutRulesNothing) {
  EXPECT_EQ(logs_of(1, {}, {kOptimizer + "weight_decay=0.25"})[0], "");
}

}  // namespace
}  // namespace tapestry::parameter_rules_log_test
