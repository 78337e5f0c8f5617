#include "diagnosis/report/run_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/tensor/error.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry::report {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string line(int step, const std::string& loss, const std::string& more = "") {
  return "{\"step\":" + std::to_string(step) + ",\"loss\":" + loss +
         ",\"tokens\":8,\"step_time_ms\":2.5,\"finite\":true" + more + "}\n";
}

class RunRecordTest : public ::testing::Test {
 protected:
  std::vector<RunRecord> read(const std::string& metrics) const {
    dir_.write("run/metrics.jsonl", metrics);
    return read_run_records({dir_.file("run")});
  }
  data::TempDir dir_;
};

TEST_F(RunRecordTest, HasAColumnForEachNumber) {
  const auto runs = read(line(1, "3.5", ",\"lr\":[0.1,0.1],\"bubble\":{\"measured\":0.25}") +
                         line(2, "\"nan\"", ",\"lr\":[0.2,0.3],\"eval_loss\":4") +
                         line(3, "3", ",\"lr\":[0.1,0.1]"));
  ASSERT_EQ(runs.size(), 1U);
  const RunRecord& run = runs[0];
  EXPECT_EQ(run.name, "run");
  EXPECT_EQ(run.folder, dir_.file("run"));
  EXPECT_THAT(run.steps, ElementsAre(1, 2, 3));
  EXPECT_EQ((*run.column("loss"))[0], 3.5);
  EXPECT_TRUE(std::isnan((*run.column("loss"))[1]));
  EXPECT_THAT(*run.column("lr"), ElementsAre(0.1, 0.2, 0.1));
  EXPECT_TRUE(std::isnan((*run.column("lr/1"))[0]));
  EXPECT_EQ((*run.column("lr/1"))[1], 0.3);
  EXPECT_EQ((*run.column("lr/1"))[2], 0.1);
  EXPECT_EQ((*run.column("eval_loss"))[1], 4);
  EXPECT_EQ(run.column("eval_loss")->size(), 3U);
  EXPECT_EQ((*run.column("bubble/measured"))[0], 0.25);
  EXPECT_EQ(run.column("nothing"), nullptr);
  EXPECT_THAT(run.config, IsEmpty());
  EXPECT_THAT(run.notes, ElementsAre(HasSubstr("no config.yaml")));
}

TEST_F(RunRecordTest, StepsWithoutAnUpdate) {
  const auto runs = read(
      "{\"step\":1,\"finite\":false}\n{\"step\":2,\"finite\":true}\n"
      "{\"step\":3,\"finite\":true,\"skipped\":true}\n"
      "{\"step\":4,\"finite\":false,\"skipped\":true}\n");
  EXPECT_THAT(runs[0].not_finite, ElementsAre(1, 4));
  EXPECT_THAT(runs[0].skipped, ElementsAre(3));
}

TEST_F(RunRecordTest, TablesAndMemory) {
  const auto runs = read(line(1, "3", ",\"grad_norms\":{\"a\":1,\"b\":\"inf\"}") +
                         line(2, "3",
                              ",\"grad_norms\":{\"a\":5,\"b\":2},\"memory\":{\"gradients\":{"
                              "\"current_bytes\":10,\"peak_bytes\":20}}"));
  const auto& norms = runs[0].tables.at("grad_norms");
  EXPECT_EQ(norms.at("a").highest().y, 5);
  EXPECT_EQ(norms.at("a").first().y, 1);
  EXPECT_EQ(norms.at("b").not_finite(), 1);
  ASSERT_EQ(runs[0].memory.size(), 1U);
  EXPECT_EQ(runs[0].memory[0].kind, "gradients");
  EXPECT_EQ(runs[0].memory[0].current_bytes, 10);
  EXPECT_EQ(runs[0].memory[0].peak_bytes, 20);
}

TEST_F(RunRecordTest, MonitorsOfTheRunItsParametersAndRanks) {
  const auto runs = read(line(1, "3",
                              R"(,"monitor":{"weight_norm":2,"local_norm/a.b":5},)"
                              R"("ranks":{"device_local_norm":[1,"nan",3]})") +
                         line(2, "3"));
  EXPECT_EQ((*runs[0].column("monitor/weight_norm"))[0], 2);
  EXPECT_TRUE(std::isnan((*runs[0].column("monitor/weight_norm"))[1]));
  EXPECT_EQ(runs[0].tables.at("local_norm").at("a.b").last().y, 5);
  EXPECT_EQ((*runs[0].column("ranks/device_local_norm/2"))[0], 3);
  EXPECT_TRUE(std::isnan((*runs[0].column("ranks/device_local_norm/1"))[0]));
}

TEST_F(RunRecordTest, TheLaterLineAboutAStepCounts) {
  const auto runs = read(line(1, "9", ",\"n\":{\"a\":1}") + line(2, "8", ",\"n\":{\"a\":2}") +
                         "{\"step\":3,\"finite\":false,\"n\":{\"a\":70}}\n" + line(4, "6") +
                         line(3, "5", ",\"n\":{\"a\":3}") + line(4, "4"));
  ASSERT_EQ(runs.size(), 1U);
  EXPECT_THAT(runs[0].steps, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(*runs[0].column("loss"), ElementsAre(9, 8, 5, 4));
  EXPECT_THAT(runs[0].not_finite, IsEmpty());
  EXPECT_EQ(runs[0].tables.at("n").at("a").highest().y, 3);
  EXPECT_THAT(runs[0].notes, ::testing::Contains(Says("3 ... again; the earlier ... 2")));
}

TEST_F(RunRecordTest, StepsThatStartOverAreAnotherRun) {
  dir_.write("run/config.yaml", "training_config:\n  seed: 1  # default\n");
  const auto runs = read(line(1, "9") + line(2, "8") + line(1, "7") + "{\"step\":2,\"lo");
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_EQ(runs[0].name, "run part 1");
  EXPECT_EQ(runs[1].name, "run part 2");
  EXPECT_THAT(runs[0].config, IsEmpty());
  EXPECT_EQ(runs[1].config.size(), 1U);
  EXPECT_THAT(runs[1].notes, ElementsAre(HasSubstr("incomplete")));
}

TEST_F(RunRecordTest, HealthIsTheLastWordOnACheckpoint) {
  dir_.write("run/health_ckpts.json",
             R"([{"is_health": 0, "ckpt_name": "a"}, {"is_health": 1, "ckpt_name": "b"},
                 {"is_health": 1, "ckpt_name": "a"}, {"ckpt_name": "c"}])");
  const auto runs = read(line(1, "9"));
  ASSERT_EQ(runs[0].health.size(), 2U);
  EXPECT_EQ(runs[0].health[0].name, "b");
  EXPECT_EQ(runs[0].health[1].name, "a");
  EXPECT_FALSE(runs[0].health[1].healthy);
  EXPECT_THAT(runs[0].notes, ::testing::Contains(Says("has an entry without ... ckpt_name")));
}

TEST_F(RunRecordTest, HealthMayLieInAnotherFolder) {
  const std::string other = dir_.file("other");
  dir_.write("other/health_ckpts.json", R"([{"is_health": 0, "ckpt_name": "a"}])");
  dir_.write("run/config.yaml", "monitor_config:\n  health_ckpts_record_dir: " + other + "\n");
  EXPECT_EQ(read(line(1, "9"))[0].health.size(), 1U);
}

TEST_F(RunRecordTest, AConfigurationThatCannotBeReadIsNoted) {
  dir_.write("run/config.yaml", "a: [1");
  EXPECT_THAT(read(line(1, "9"))[0].notes,
              ElementsAre(Says("cannot be read: ... config.yaml:1:4")));
}

TEST_F(RunRecordTest, WhatIsNoRunIsAnError) {
  EXPECT_ERROR(read_run_records({dir_.file("nowhere")}), IoError, "no such file or folder");
  EXPECT_ERROR(read(""), IoError, "is empty");
  EXPECT_ERROR(read("[1]\n"), IoError, "metrics.jsonl:1: is no JSON object");
  EXPECT_ERROR(read("{\"step\":0}\n"), IoError, "'step' is 0");
  dir_.write("run/metrics.jsonl", line(1, "9"));
  EXPECT_ERROR(read_run_records({dir_.file("run"), dir_.file("run/metrics.jsonl")}), ValueError,
               "is given twice");
}

}  // namespace
}  // namespace tapestry::report
