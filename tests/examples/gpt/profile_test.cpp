// Profiles that the program writes.
#include "tests/diagnosis/profile/trace_checks.h"
#include "tests/examples/gpt/run_program.h"
#include "tests/says.h"

namespace tapestry::profile_test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

std::string set(const std::string& key, const std::string& value) {
  return " --set training_config." + key + "=" + value;
}

class ProfileTest : public ProgramTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(prepare_text());
    dir_.write("run.yaml", kTinyRun);
  }
  int train(const std::string& arguments) { return pretrain("--config_path run.yaml" + arguments); }
};

TEST_F(ProfileTest, ARunWritesTraceAndTablesAndGoesOn) {
  ASSERT_EQ(
      train(set("profile", "True") + set("profile_step_end", "2") + set("profile_level", "level1") +
            set("profile_memory", "True") + set("save_interval", "2")),
      0)
      << said();
  const Json trace = Json::parse(dir_.read("output/profile/trace.json"));
  testing::expect_nested(trace);
  EXPECT_LT(testing::uncovered_share(trace, 0), 0.1);  // the steps take less than a millisecond
  std::map<std::string, int> tracks;
  for (const testing::TracedSlice& slice : testing::slices_of(trace)) {
    if (slice.category == "phase") {
      tracks[slice.name] = slice.tid;
    }
  }
  EXPECT_EQ(tracks.at("save"), 3);
  EXPECT_EQ(tracks.at("data"), 2);
  EXPECT_EQ(tracks.at("forward"), 0);
  EXPECT_THAT(out_, HasSubstr("profile of steps 1 to 2 on 1 rank: "));
  EXPECT_THAT(out_, HasSubstr("MiB  parameters in 1 block, parameter weight"));
  int64_t held = 0;
  std::istringstream lines(dir_.read("output/profile/memory.csv"));
  std::string line;
  std::getline(lines, line);
  EXPECT_EQ(line, "rank,module,op,kind,bytes,blocks,share_of_peak");
  while (std::getline(lines, line)) {
    std::istringstream fields(line);
    std::string field;
    for (int i = 0; i < 5; ++i) {
      std::getline(fields, field, ',');
    }
    held += std::stoll(field);
  }
  EXPECT_EQ(held, steps()[1].at("peak_bytes").get<int64_t>());
  EXPECT_EQ(steps().size(), 3U);
}

TEST_F(ProfileTest, WhatTheRanksHaveWrittenIsPutTogetherLater) {
  ASSERT_EQ(train(set("profile", "True") + set("profile_offline_analyse", "True")), 0) << said();
  EXPECT_THAT(out_, HasSubstr("pretrain_gpt --analyse_profile ./output/profile puts it together"));
  EXPECT_FALSE(fs::exists(dir_.file("output/profile/trace.json")));
  ASSERT_EQ(pretrain("--analyse_profile output/profile"), 0) << said();
  EXPECT_THAT(out_, HasSubstr("profile of steps 1 to 3 on 1 rank: "));
  testing::expect_nested(Json::parse(dir_.read("output/profile/trace.json")));
  EXPECT_EQ(pretrain("--analyse_profile elsewhere"), 2);
  EXPECT_THAT(err_, HasSubstr("elsewhere/rank_0/trace.json: cannot be read"));
}

TEST_F(ProfileTest, WithoutTheKeyNothingIsWritten) {
  ASSERT_EQ(train(""), 0) << said();
  EXPECT_FALSE(fs::exists(dir_.file("output/profile")));
}

// The weights do not know of it.
TEST_F(ProfileTest, TheRunIsTheSame) {
  ASSERT_EQ(train(set("output_dir", "plain")), 0) << said();
  ASSERT_EQ(train(set("output_dir", "profiled") + set("profile", "True") +
                  set("profile_level", "level2") + set("profile_with_stack", "True")),
            0)
      << said();
  EXPECT_EQ(metrics("profiled"), metrics("plain"));
}

TEST_F(ProfileTest, WrongPathsAreFoundBeforeTheRun) {
  const std::string on = set("profile", "True");
  EXPECT_EQ(train(on + set("profile_dynamic_profiler_config_path", "steer.json")), 2);
  EXPECT_THAT(err_, HasSubstr("steer.json is neither"));
  EXPECT_EQ(train(" --dry_run" + on + set("profile_dynamic_profiler_config_path", "steer.json")),
            2);
  EXPECT_THAT(err_, HasSubstr("steer.json is neither"));
  dir_.write("taken", "");
  EXPECT_EQ(train(on + set("profile_save_path", "taken")), 2);
  EXPECT_THAT(err_, Says("taken: is a file ... a folder"));
  EXPECT_EQ(train(on + set("profile_step_start", "4")), 2);
  EXPECT_THAT(err_, HasSubstr("profile_step_start: is 4, but the run has 3 steps"));
  for (const char* counter : {"profile_l2_cache=True", "profile_hbm_ddr=True", "profile_pcie=True",
                              "profile_aicore_metrics=1"}) {
    EXPECT_EQ(train(std::string(" --set training_config.") + counter), 2) << counter;
    EXPECT_THAT(err_, Says("refused: ... accelerator")) << counter;
  }
  EXPECT_FALSE(fs::exists(dir_.file("output")));
}

TEST_F(ProfileTest, AWrongRequestIsAWarning) {
  dir_.write("steer.json", R"({"start_step": 2, "stop_step": 1})");
  ASSERT_EQ(
      train(set("profile", "True") + set("profile_dynamic_profiler_config_path", "steer.json")), 0)
      << said();
  EXPECT_THAT(out_ + err_, Says("is not followed"));
  EXPECT_THAT(out_ + err_, HasSubstr("stop_step 1 lies before start_step 2"));
}

}  // namespace
}  // namespace tapestry::profile_test
