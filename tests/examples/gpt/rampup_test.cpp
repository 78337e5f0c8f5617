// training_config.rampup_batch_size: the samples that steps draw, schedules, runs that go on.
#include <map>
#include <numeric>

#include "parallel_core/data/step_dataset.h"
#include "tests/examples/gpt/drill_test.h"
#include "tests/says.h"

namespace tapestry::drills {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Levels 2, 4, 6, then 8: 20/3 samples each.
const std::string kRampup =
    set_training("rampup_batch_size", "[2,2,20]") + set("dataset_config.micro_batch_num", "4");
// Sequences of the steps after 0 2 4 6 8 12 16 22 samples.
const std::vector<int64_t> kBatches = {2, 2, 2, 2, 4, 4, 6, 8};

class Rampup : public DrillTest {
 protected:
  std::vector<int64_t> batches(const std::string& output = "output") const {
    std::vector<int64_t> all;
    for (const Json& line : steps(output)) {
      all.push_back(line.at("tokens").get<int64_t>() / 16);
    }
    return all;
  }
  // "sample text" of each row, in the order of the samples.
  std::vector<std::string> drawn(const std::string& arguments) {
    EXPECT_EQ(train(arguments), 0) << said();
    std::istringstream text(out_);
    std::map<int64_t, std::string> rows;
    for (std::string line; std::getline(text, line);) {
      const Json json = Json::parse(line);
      rows[json.at("sample")] = json.at("text");
    }
    std::vector<std::string> all;
    for (const auto& [sample, row] : rows) {
      EXPECT_EQ(sample, std::ssize(all));
      all.push_back(row);
    }
    return all;
  }
};

TEST_F(Rampup, StepsGrowAndGoOnBitForBit) {
  const std::string board = set("tensorboard.tensorboard_dir", "board");
  ASSERT_EQ(train(kRampup + set_training("output_dir", "whole") + board), 0) << said();
  EXPECT_EQ(batches("whole"), kBatches);
  EXPECT_THAT(out_, Says("length ... 8 steps, 32 to 128 tokens a step, 480 in all"));
  // Steps 5 and 6 have another batch than those before and those behind.
  ASSERT_EQ(train(kRampup + set_training("training_iters", "6")), 0) << said();
  ASSERT_EQ(train(kRampup + kResume), 0) << said();
  expect_same_end(8, "output", "whole");
  // In the middle of the ramp-up, with the file that was kept.
  ASSERT_EQ(train(kRampup + set_training("output_dir", "again") + kResume +
                  set_training("load_checkpoint", checkpoint(4, "whole"))),
            0)
      << said();
  EXPECT_TRUE(weights(8, "again") == weights(8, "whole"));
  EXPECT_TRUE(moments(8, "again") == moments(8, "whole"));
}

TEST_F(Rampup, TheSamplesAndTheirOrderAreThoseOfARunWithout) {
  const std::vector<std::string> with = drawn(kRampup + " --which_data 1-8");
  ASSERT_EQ(std::ssize(with), std::reduce(kBatches.begin(), kBatches.end()));
  const std::vector<std::string> without =
      drawn(set("dataset_config.micro_batch_num", "4") + " --which_data 1-8");
  EXPECT_EQ(with, std::vector<std::string>(without.begin(), without.begin() + std::ssize(with)));
  // What trains is what was shown, also for several ranks and behind a checkpoint.
  ASSERT_EQ(train(kRampup + " --which_data 7"), 0) << said();
  const std::string seventh = out_;
  EXPECT_EQ(std::count(seventh.begin(), seventh.end(), '\n'), 6);
  EXPECT_THAT(seventh, HasSubstr("\"sample\":16"));
  ASSERT_EQ(train(kRampup + set_training("training_iters", "6")), 0) << said();
  ASSERT_EQ(train(kRampup + kResume + " --which_data 7"), 0) << said();
  EXPECT_EQ(out_, seventh);
  ASSERT_EQ(train(kRampup + " --which_steps text_text_document:0"), 0) << said();
  EXPECT_EQ(std::count(out_.begin(), out_.end(), '\n'), std::ssize(with));
  EXPECT_THAT(out_, HasSubstr("{\"step\":7,\"dp_rank\":0,\"micro_batch\":2,\"row\":1,"
                              "\"sample\":21,"));
  ASSERT_EQ(train(set_training("rampup_batch_size", "[4,4,20]") +
                  set("dataset_config.micro_batch_num", "4") + " --which_data 1 --ranks 2"),
            0)
      << said();
  EXPECT_EQ(std::count(out_.begin(), out_.end(), '\n'), 4);
  EXPECT_THAT(out_, HasSubstr("\"dp_rank\":1,\"micro_batch\":0,\"row\":1,\"sample\":3,"));
}

TEST_F(Rampup, LengthsInSamplesAreThoseOfTheSamplesDrawn) {
  const std::string samples = set_training("training_iters", "0") +
                              set("dataset_config.train_samples", "40") +
                              set("optimizer_config.lr_decay_style", "linear");
  ASSERT_EQ(train(kRampup + samples), 0) << said();
  // A tenth step would end with sample 46.
  EXPECT_THAT(batches(), ElementsAre(2, 2, 2, 2, 4, 4, 6, 8, 8));
  int64_t consumed = 0;
  for (const Json& line : steps()) {
    const double expected = 1e-3 * (1 - static_cast<double>(consumed) / 40);
    EXPECT_NEAR(line.at("lr")[0].get<double>(), expected, 1e-15) << line.at("step");
    consumed += line.at("tokens").get<int64_t>() / 16;
  }
  // Half of it, and on: the schedule knows the samples.
  ASSERT_EQ(train(kRampup + samples + set_training("output_dir", "again") + kResume +
                  set_training("load_checkpoint", checkpoint(6))),
            0)
      << said();
  EXPECT_EQ(steps("again").front().at("lr"), steps()[6].at("lr"));
  EXPECT_EQ(steps("again").back().at("loss"), steps().back().at("loss"));
  // In steps, lengths are those of steps.
  ASSERT_EQ(train(kRampup + set("optimizer_config.lr_decay_style", "linear") +
                  set_training("output_dir", "steps")),
            0)
      << said();
  EXPECT_NEAR(steps("steps")[4].at("lr")[0].get<double>(), 1e-3 * (1 - 4.0 / 8), 1e-15);
}

TEST_F(Rampup, EpochsEndWithTheirSamples) {
  const std::string epochs = set_training("training_iters", "0") + set_training("epochs", "1") +
                             set_training("log_style", "static");
  ASSERT_EQ(train(set("dataset_config.micro_batch_num", "4") + epochs +
                  set_training("output_dir", "plain")),
            0)
      << said();
  ASSERT_EQ(train(kRampup + epochs), 0) << said();
  const auto drawn_by = [&](const std::string& output) {
    const std::vector<int64_t> all = batches(output);
    return std::reduce(all.begin(), all.end());
  };
  EXPECT_GT(steps().size(), steps("plain").size());
  EXPECT_NEAR(static_cast<double>(drawn_by("output")), static_cast<double>(drawn_by("plain")), 7);
  EXPECT_EQ(steps().back().at("epoch"), 0);
  EXPECT_THAT(
      out_, HasSubstr(concat("step:[", std::string(5 - std::to_string(steps().size()).size(), ' '),
                             steps().size(), "/")));
}

// Each step's recording has as many rows as its batch.
TEST_F(Rampup, RecordedStepsMayGrowToo) {
  for (int64_t step = 0; step < 3; ++step) {
    const int64_t rows = 2 * (step + 1);
    data::StepRows made{.rows = rows, .seq = 16, .tokens = {}, .labels = {}, .loss_mask = {}};
    for (int64_t i = 0; i < rows * 16; ++i) {
      made.tokens.push_back((7 * step + 3 * i) % 250);
      made.labels.push_back((7 * step + 3 * i + 3) % 250);
      made.loss_mask.push_back(1);
    }
    data::write_step(dir_.file("recorded"), step, 0, made);
  }
  const std::string recorded =
      set("dataset_config.data_path", "null") + set("dataset_config.split", "969,30,1") +
      set("dataset_config.step_data_dir", "recorded") +
      set_training("rampup_batch_size", "[2,2,4]") + set("dataset_config.micro_batch_num", "3");
  ASSERT_EQ(train(recorded + set_training("training_iters", "3")), 0) << said();
  EXPECT_THAT(batches(), ElementsAre(2, 4, 6));
}

TEST_F(Rampup, WhatCannotBeIsRefusedBeforeAnythingIsWritten) {
  const auto before = tree();
  const auto refused = [&](const std::string& arguments, const char* what) {
    for (const char* more : {"", " --dry_run"}) {
      EXPECT_EQ(train(arguments + more), 2) << said();
      EXPECT_THAT(out_ + err_, Says(what));
      EXPECT_EQ(tree(), before);
    }
  };
  refused(set_training("rampup_batch_size", "[2,2]"), "expected [start, increment, samples]");
  refused(set_training("rampup_batch_size", "[4,2,20]"), "begins with 4 ... above");
  refused(kRampup + set("dataset_config.batch_size", "4"), "2 sequences are no multiple");
  refused(kRampup + set("dataset_config.drop_remainder", "False") +
              set_training("training_iters", "0") + set("dataset_config.train_samples", "45"),
          "the last whole one with sample 38");
}

// Recorded steps in their second epoch.
TEST_F(Rampup, RecordedStepsGoOnInALaterEpoch) {
  for (int64_t step = 0; step < 3; ++step) {
    data::StepRows made{.rows = 2, .seq = 16, .tokens = {}, .labels = {}, .loss_mask = {}};
    for (int64_t i = 0; i < 32; ++i) {
      made.tokens.push_back((7 * step + 3 * i) % 250);
      made.labels.push_back((7 * step + 3 * i + 3) % 250);
      made.loss_mask.push_back(1);
    }
    data::write_step(dir_.file("recorded"), step, 0, made);
  }
  const std::string recorded = set("dataset_config.data_path", "null") +
                               set("dataset_config.split", "969,30,1") +
                               set("dataset_config.step_data_dir", "recorded");
  for (const std::string& more :
       {std::string(), set("dataset_config.step_data_as_samples", "True") +
                           set("dataset_config.micro_batch_num", "2")}) {
    ASSERT_EQ(train(recorded + more + set_training("output_dir", "whole") + " --overwrite"), 0)
        << said();
    EXPECT_THAT(out_, Says("holds 3 steps, the run has 8: ... first one comes again"));
    std::vector<int64_t> epochs;
    for (const Json& line : steps("whole")) {
      epochs.push_back(line.at("epoch"));
    }
    EXPECT_EQ(epochs, more.empty() ? std::vector<int64_t>({0, 0, 0, 1, 1, 1, 2, 2})
                                   : std::vector<int64_t>({0, 0, 1, 2, 2, 3, 4, 4}));
    ASSERT_EQ(train(recorded + more + set_training("training_iters", "4") + " --overwrite"), 0);
    ASSERT_EQ(train(recorded + more + kResume), 0) << said();
    expect_same_end(8, "output", "whole");
  }
}

}  // namespace
}  // namespace tapestry::drills
