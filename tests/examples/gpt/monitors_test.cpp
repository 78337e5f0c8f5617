// Bad batches, unhealthy checkpoints and numbers that are not finite, through the program.
#include <cmath>
#include <random>
#include <set>

#include "autograd/io/npy.h"
#include "tests/examples/gpt/drill_test.h"
#include "tests/says.h"

namespace tapestry::drills {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::string set_monitor(const std::string& key, const std::string& value) {
  return set("monitor_config." + key, value);
}
const std::string kOn = set_monitor("monitor_on", "True");
const std::string kSkip = kOn + " --set use_skip_data_by_global_norm=True";
const std::string kHealth = kOn + " --set use_checkpoint_health_monitor=True";

constexpr int64_t kRows = 8;
constexpr int64_t kLength = 16;
constexpr int64_t kWords = 64;

// A recording of rows in which each token follows from the one before it, and, in bad steps, of
// rows whose labels are noise.
class MonitorDrill : public DrillTest {
 protected:
  void record(const std::string& folder, int64_t steps, const std::set<int64_t>& bad) {
    int64_t written = 0;
    for (int64_t step = 1; step <= steps; ++step) {
      std::mt19937 random(static_cast<unsigned>(step));  // of the step, whichever number it gets
      std::vector<int64_t> tokens;
      std::vector<int64_t> labels;
      for (int64_t row = 0; row < kRows; ++row) {
        int64_t word = random() % kWords;
        for (int64_t i = 0; i < kLength; ++i) {
          const int64_t next = (5 * word + 3) % kWords;
          tokens.push_back(word);
          labels.push_back(bad.contains(step) ? static_cast<int64_t>(random() % kWords) : next);
          word = next;
        }
      }
      if (folder == "clean" && bad.contains(step)) {
        continue;
      }
      const std::string path = dir_.file(concat(folder, "/step_", ++written, "/rank_0"));
      fs::create_directories(path);
      const std::vector<float> mask(tokens.size(), 1.0F);
      write_npy(path + "/tokens.npy", kInt64, {kRows, kLength}, tokens.data());
      write_npy(path + "/labels.npy", kInt64, {kRows, kLength}, labels.data());
      write_npy(path + "/loss_mask.npy", kFloat32, {kRows, kLength}, mask.data());
    }
  }
  void SetUp() override {
    dir_.write("run.yaml", replaced(replaced(replaced(kTinyRun, "data_path: text_text_document",
                                                      "step_data_dir: recorded"),
                                             "vocab_size: 260", "vocab_size: 64"),
                                    "  split: 90,10,0\n", "  shuffle: False\n"));
  }
  int replay(const std::string& folder, int64_t steps, const std::string& more = "") {
    return train(set("dataset_config.step_data_dir", folder) +
                 set("dataset_config.batch_size", "8") +
                 set_training("training_iters", std::to_string(steps)) +
                 set_training("output_dir", "out_" + folder) + set_training("save_last", "False") +
                 set("optimizer_config.learning_rate", "2e-2") +
                 set("optimizer_config.lr_decay_style", "linear") +
                 set("optimizer_config.lr_decay_iters", "200") + more);
  }
};

TEST_F(MonitorDrill, PlantedBadBatchesAreSkippedAndTheRunEndsAsTheCleanOne) {
  const std::set<int64_t> bad = {25, 33, 34, 40};
  record("clean", 44, bad);
  record("bad", 44, bad);
  const std::string relative = kSkip + set_monitor("global_norm_spike_factor", "2") +
                               set_monitor("global_norm_median_window", "8") +
                               set_monitor("global_norm_spike_count_threshold", "3");
  ASSERT_EQ(replay("clean", 40), 0) << said();
  ASSERT_EQ(replay("bad", 44, kHealth + relative), 0) << said();
  const std::vector<json> clean = steps("out_clean");
  const std::vector<json> found = steps("out_bad");
  ASSERT_EQ(found.size(), 44U);
  std::set<int64_t> skipped;
  std::vector<json> kept;
  for (const json& step : found) {
    if (step.value("skipped", false)) {
      skipped.insert(step.at("step").get<int64_t>());
    } else {
      kept.push_back(step);
    }
  }
  EXPECT_EQ(skipped, bad);
  ASSERT_EQ(kept.size(), clean.size());
  for (size_t i = 0; i < kept.size(); ++i) {  // not one bit of the bad batches has come through
    EXPECT_EQ(kept[i].at("loss"), clean[i].at("loss")) << i;
    EXPECT_EQ(kept[i].at("lr"), clean[i].at("lr")) << i;
  }
  EXPECT_LT(clean.back().at("loss").get<double>(), 0.5 * clean.front().at("loss").get<double>());
  for (const char* line : {"opt_global_step: 24, skip_data_grad_norm_threshold: ",
                           "opt_global_step: 31, skip_data_grad_norm_threshold: "}) {
    EXPECT_THAT(out_, HasSubstr(line));
  }
  EXPECT_THAT(out_, HasSubstr("of step 34 has been 2 consecutive times greater than threshold: "));

  // With the threshold that this shows, health_ckpts.json marks the bad steps, and no other late
  // one.
  const auto norm_of = [&](int64_t step) {
    return found[static_cast<size_t>(step - 1)].at("embedding_local_norm").get<double>();
  };
  double good_norm = 0;
  double bad_norm = 1e30;
  for (int64_t step = 20; step <= 44; ++step) {
    double& side = bad.contains(step) ? bad_norm : good_norm;
    side = bad.contains(step) ? std::min(side, norm_of(step)) : std::max(side, norm_of(step));
  }
  ASSERT_GT(bad_norm, 1.5 * good_norm);
  const double threshold = std::sqrt(bad_norm * good_norm);
  ASSERT_EQ(
      replay("bad", 44,
             kHealth + relative + set_training("save_interval", "1") +
                 set_training("keep_checkpoint_max", "20") +
                 set_monitor("embedding_local_norm_threshold", concat(threshold)) + " --overwrite"),
      0)
      << said();
  const auto record = json::parse(dir_.read("out_bad/health_ckpts.json"));
  std::set<int64_t> unhealthy;
  for (const json& entry : record) {
    const std::string name = entry.at("ckpt_name");
    EXPECT_TRUE(exists("out_bad/checkpoint/" + name)) << name;
    if (entry.at("is_health") == 1) {
      unhealthy.insert(std::stoll(name.substr(5)));
    }
  }
  EXPECT_GE(record.size(), 20U);
  EXPECT_EQ(unhealthy, bad);
}

// The lines of the guide, and the end of the run.
TEST_F(MonitorDrill, SpikesInARowEndTheRun) {
  record("bad", 6, {});
  const std::string keys = kSkip + set_monitor("global_norm_spike_threshold", "1e-3") +
                           set_monitor("global_norm_spike_count_threshold", "2") +
                           set_training("log_interval", "100");
  EXPECT_EQ(replay("bad", 6, keys), 1) << said();
  const json first = steps("out_bad").at(0);
  EXPECT_EQ(steps("out_bad").size(), 2U);
  EXPECT_EQ(first.at("skipped"), true);
  EXPECT_THAT(out_, AllOf(HasSubstr("train: Epoch:0, Step:1, "),
                          HasSubstr("opt_global_step: 0, skip_data_grad_norm_threshold: 0.001, "
                                    "is_skip: [ True]")));
  const std::regex counted(
      "Current global norm \\[[0-9.]+\\] of step 1 has been 1 consecutive times greater than "
      "threshold: 0\\.001");
  EXPECT_TRUE(std::regex_search(out_, counted)) << out_;
  const std::regex stopped(
      "Current global norm \\[[0-9.]+\\] of step 2 has been 2 consecutive times greater than "
      "threshold 0\\.001, stop training\\.\\.\\.");
  EXPECT_TRUE(std::regex_search(err_, stopped)) << err_;
  EXPECT_THAT(out_, Not(HasSubstr("of step 2 has been")));
}

// The count goes on where a run was interrupted.
TEST_F(MonitorDrill, TheCountIsResumed) {
  record("bad", 6, {});
  const std::string keys = kSkip + set_monitor("global_norm_spike_threshold", "1e-3") +
                           set_monitor("global_norm_spike_count_threshold", "3") +
                           set_training("save_interval", "1");
  ASSERT_EQ(replay("bad", 2, keys), 0) << said();
  EXPECT_EQ(replay("bad", 6, keys + kResume), 1) << said();
  EXPECT_THAT(err_, HasSubstr("of step 3 has been 3 consecutive times greater than threshold "
                              "0.001, stop training..."));
}

// What a run decides from its last losses and norms does not depend on where it was interrupted.
TEST_F(MonitorDrill, WindowsOfThePastAreResumed) {
  const std::set<int64_t> bad = {25, 33, 34, 40};
  record("bad", 44, bad);
  const auto go_on = [&](const std::string& keys, int64_t after) {
    return replay("bad", 44,
                  keys + set_training("output_dir", "again") + " --overwrite" +
                      set_training("load_checkpoint", "out_bad") +
                      set_training("resume_training", name_of_step(after)));
  };
  const std::string all_saved =
      set_training("save_interval", "4") + set_training("keep_checkpoint_max", "100");
  const std::string by_norm =
      set_monitor("global_norm_spike_factor", "2") + set_monitor("global_norm_median_window", "8");
  for (const std::string& keys :
       {set_training("loss_spike_threshold", "1.2") + set_training("loss_spike_window", "8") +
            set_training("on_anomaly", "skip") + set_training("max_capsules", "0"),
        kSkip + by_norm}) {
    SCOPED_TRACE(keys);
    ASSERT_EQ(replay("bad", 44, keys + all_saved + " --overwrite"), 0) << said();
    const std::vector<json> whole = steps("out_bad");
    std::set<int64_t> skipped;
    for (const json& step : whole) {
      if (step.value("skipped", false)) {
        skipped.insert(step.at("step").get<int64_t>());
      }
    }
    EXPECT_EQ(skipped, bad);
    for (const int64_t after : {20, 24, 32}) {
      SCOPED_TRACE(after);
      ASSERT_EQ(go_on(keys, after), 0) << said();
      const std::vector<json> again = steps("again");
      ASSERT_EQ(std::ssize(again), 44 - after);
      for (const json& step : again) {
        const json& first = whole[step.at("step").get<size_t>() - 1];
        EXPECT_EQ(step.at("loss"), first.at("loss")) << step.at("step");
        EXPECT_EQ(step.value("skipped", false), first.value("skipped", false)) << step.at("step");
      }
    }
  }
  // A norm that ends the run does so.
  const std::string ends = kOn + set_monitor("check_for_global_norm", "True") + by_norm;
  ASSERT_EQ(replay("bad", 44, ends + all_saved + " --overwrite"), 1) << said();
  EXPECT_EQ(std::ssize(steps("out_bad")), 25);
  for (const int64_t after : {20, 24}) {
    EXPECT_EQ(go_on(ends, after), 1) << said();
    EXPECT_THAT(err_, HasSubstr("stop training..."));
    EXPECT_EQ(steps("again").back().at("step"), 25);
  }
}

TEST_F(MonitorDrill, AnAbnormalNormEndsTheRunOnce) {
  record("bad", 6, {});
  const std::string keys = kOn + set_monitor("check_for_global_norm", "True") +
                           set_monitor("global_norm_spike_threshold", "1e-3");
  EXPECT_EQ(replay("bad", 2, keys + set_training("save_interval", "1")), 1) << said();
  EXPECT_THAT(err_, AllOf(HasSubstr("Current global norm ["),
                          HasSubstr("] is greater equal than threshold 0.001, stop training...")));
  auto record = json::parse(dir_.read("out_bad/abnormal_global_norm.json"));
  ASSERT_EQ(record.size(), 1U);
  EXPECT_EQ(record.at("1").at(0), steps("out_bad").at(0).at("grad_norm"));
  EXPECT_FALSE(exists("out_bad/checkpoint"));
  // Again from the beginning: step 1 may pass, step 2 not yet.
  EXPECT_EQ(replay("bad", 2, keys + kResume), 1) << said();
  EXPECT_THAT(out_, HasSubstr("of step 1 is still greater or equal than threshold 0.001, continue "
                              "training."));
  EXPECT_EQ(replay("bad", 2, keys + kResume), 0) << said();
  record = json::parse(dir_.read("out_bad/abnormal_global_norm.json"));
  EXPECT_EQ(record.at("1").size(), 3U);
  EXPECT_EQ(record.at("2").size(), 2U);
}

class MonitoredRun : public DrillTest {
 protected:
  json healthy() const { return json::parse(dir_.read("output/health_ckpts.json")); }
  void write_health(const std::vector<std::pair<int64_t, int>>& entries) {
    json record = json::array();
    for (const auto& [step, state] : entries) {
      record.push_back({{"is_health", state}, {"ckpt_name", name_of_step(step)}});
    }
    dir_.write("output/health_ckpts.json", record.dump());
  }
  // Going on, with two more steps, with what the record allows.
  int go_on(const std::string& more = "") {
    return train(kHealth + kBig + kResume + set_training("training_iters", "10") + more);
  }
  void expect_goes_on_after(int64_t step) {
    EXPECT_EQ(go_on(), 0) << said();
    EXPECT_THAT(out_, HasSubstr(concat("going on after step ", step, " with")));
  }

  const std::string kBig = set_monitor("embedding_local_norm_threshold", "1e9");
};

TEST_F(MonitoredRun, TheRecordFollowsTheCheckpoints) {
  ASSERT_EQ(train(kHealth + kBig + set_training("keep_checkpoint_max", "2")), 0) << said();
  EXPECT_EQ(dir_.read("output/health_ckpts.json"),
            "[\n    {\n        \"is_health\": 0,\n        \"ckpt_name\": \"step_00000006\"\n    "
            "},\n    {\n        \"is_health\": 0,\n        \"ckpt_name\": \"step_00000008\"\n    "
            "}\n]\n");
  EXPECT_THAT(out_, HasSubstr("embedding_local_norm: "));
  EXPECT_THAT(steps().at(0).at("embedding_local_norm").get<double>(), ::testing::Gt(0));
  // Nothing healthy but the first: it stays, however many come after it.
  write_health({{6, 0}, {8, 1}});
  ASSERT_EQ(train(kHealth + set_monitor("embedding_local_norm_threshold", "1e-9") + kResume +
                  set_training("keep_checkpoint_max", "1") + set_training("training_iters", "12")),
            0)
      << said();
  EXPECT_THAT(saved(), ElementsAre(name_of_step(6), name_of_step(12)));
  EXPECT_EQ(healthy().size(), 2U);
  EXPECT_EQ(healthy()[0], (json{{"is_health", 0}, {"ckpt_name", name_of_step(6)}}));
  EXPECT_EQ(healthy()[1], (json{{"is_health", 1}, {"ckpt_name", name_of_step(12)}}));
  // An --overwrite takes the record with the checkpoints.
  ASSERT_EQ(train(set_training("save_last", "False") + set_training("save_interval", "null") +
                  " --overwrite"),
            0)
      << said();
  EXPECT_FALSE(exists("output/health_ckpts.json"));
  EXPECT_TRUE(exists("output/old/run_1/health_ckpts.json") ||
              exists("output/old/run_2/health_ckpts.json"));
}

// The newest checkpoint is not the one to go on with if it is unhealthy, gone or not whole.
TEST_F(MonitoredRun, GoesOnWithTheNewestHealthyCheckpoint) {
  ASSERT_EQ(train(kHealth + kBig), 0) << said();
  const auto all = [&] { return saved(); };
  ASSERT_THAT(all(),
              ElementsAre(name_of_step(2), name_of_step(4), name_of_step(6), name_of_step(8)));
  fs::copy(dir_.file("output"), dir_.file("kept"), fs::copy_options::recursive);
  const auto again = [&] {
    fs::remove_all(dir_.file("output"));
    fs::copy(dir_.file("kept"), dir_.file("output"), fs::copy_options::recursive);
  };
  write_health({{2, 0}, {4, 0}, {6, 0}, {8, 1}});  // the newest is unhealthy
  expect_goes_on_after(6);
  EXPECT_THAT(out_, HasSubstr("step_00000008 is passed over: it is unhealthy by "));
  again();
  write_health({{2, 0}, {4, 0}, {6, 0}, {8, 0}, {9, 0}, {8, 1}});  // 9 is gone, 8 is told twice
  expect_goes_on_after(6);
  again();
  write_health({{2, 0}, {4, 0}, {6, 0}});  // 8 was written, its entry was not
  expect_goes_on_after(6);
  EXPECT_THAT(out_, HasSubstr("step_00000008 is passed over: it has no entry in "));
  again();
  write_health({{2, 0}, {4, 0}, {6, 0}, {8, 0}});
  fs::remove(dir_.file(checkpoint(8) + "/model.safetensors"));  // parts are missing
  fs::remove(dir_.file(checkpoint(6) + "/manifest.json"));
  expect_goes_on_after(4);
  again();
  write_health({{2, 0}, {4, 1}, {6, 1}, {8, 1}});
  EXPECT_EQ(go_on(set_training("resume_training", name_of_step(6))), 0) << said();
  EXPECT_THAT(out_,
              AllOf(HasSubstr("going on after step 6"), Says("asked for ... is unhealthy by")));
  again();
  write_health({{2, 0}, {4, 0}, {6, 1}, {8, 1}});  // into a folder of its own
  EXPECT_EQ(go_on(set_training("load_checkpoint", "output") + set_training("output_dir", "other")),
            0)
      << said();
  EXPECT_THAT(out_, HasSubstr("going on after step 4"));
  EXPECT_EQ(json::parse(dir_.read("other/health_ckpts.json")).size(), 3U);  // 6, 8, 10
}

TEST_F(MonitoredRun, DoesNotGoOnWithoutAHealthyCheckpoint) {
  ASSERT_EQ(go_on(), 0) << said();  // nothing there yet
  EXPECT_THAT(out_, HasSubstr("from its beginning"));
  const std::string none =
      "The training has no healthy checkpoints yet, please start training again.";
  write_health({{8, 1}, {10, 1}});
  EXPECT_EQ(go_on(), 2) << said();
  EXPECT_THAT(err_, AllOf(HasSubstr(none), HasSubstr("step_00000010 is passed over"),
                          HasSubstr("embedding_local_norm_threshold")));
  fs::remove(dir_.file("output/health_ckpts.json"));
  EXPECT_EQ(go_on(), 2) << said();
  EXPECT_THAT(err_, AllOf(HasSubstr(none), HasSubstr("it has no entry in")));
  dir_.write("output/health_ckpts.json", "");
  EXPECT_EQ(go_on(), 2) << said();
  EXPECT_THAT(err_, HasSubstr(none));
  dir_.write("output/health_ckpts.json", "[{\"is_health\": 0");
  EXPECT_EQ(go_on(), 2) << said();
  EXPECT_THAT(err_, HasSubstr("health_ckpts.json: is no list"));
  EXPECT_EQ(go_on(set_monitor("use_checkpoint_health_monitor", "False")), 0) << said();
}

TEST_F(MonitoredRun, ValuesGoToTheLogAndToMetrics) {
  ASSERT_EQ(
      train(kOn + set_monitor("target", "[word_emb,final_norm]") +
            set_monitor("step_interval", "2") + set_monitor("local_norm_format", "log") +
            set_monitor("device_local_norm_format", "[log,tensorboard]") +
            set_monitor("local_loss_format", "log") +
            set_monitor("device_local_loss_format", "log") +
            set_monitor("optimizer_state_format", "log") +
            set_monitor("weight_state_format", "log") + set_monitor("throughput_baseline", "100") +
            set_monitor("value_format", "general") + set("dataset_config.micro_batch_num", "2")),
      0)
      << said();
  for (const char* tag :
       {"local_norm/language_model.embedding.word_embeddings.weight: ", "device_local_norm: ",
        "micro_local_loss: ", "device_accum_local_loss: ", "weight_norm: ",
        "adam_m_norm/language_model.embedding.word_embeddings.weight: ",
        "adam_v_norm/language_model.embedding.word_embeddings.weight: ",
        "throughput_linearity: "}) {
    EXPECT_THAT(out_, HasSubstr(concat("Epoch:[  1/  1], step:[    2/    8] ", tag)));
  }
  EXPECT_THAT(out_, AllOf(Not(HasSubstr("step:[    1/    8]")), Not(HasSubstr("encoder.layers"))));
  const std::vector<json> lines = steps();
  EXPECT_FALSE(lines.at(0).contains("monitor"));
  const json& monitor = lines.at(1).at("monitor");
  EXPECT_GT(monitor.at("weight_norm").get<double>(), 0);
  EXPECT_GT(monitor.at("adam_v_norm/language_model.embedding.word_embeddings.weight").get<double>(),
            0);
  const json& ranks = lines.at(1).at("ranks");
  EXPECT_EQ(ranks.at("compute_ms").size(), 1U);
  // One rank: its own gradients are those of the run.
  EXPECT_NEAR(ranks.at("device_local_norm").at(0).get<double>(), lines.at(1).at("grad_norm"),
              1e-12);
}

// Gradients that overflow float16, whose loss is finite: how many of them there were in a row, and
// that the autopsy has seen enough of them, is known after a stop.
TEST_F(MonitoredRun, StepsInARowThatAreNotFiniteAreCountedOn) {
  const std::string keys = set_training("fp16", "True") + set_training("loss_scale", "1e30") +
                           set_training("max_nonfinite_steps", "6") +
                           set_training("save_interval", "1");
  EXPECT_EQ(train(keys + set_training("output_dir", "whole")), 1) << said();
  EXPECT_EQ(steps("whole").size(), 6U);
  EXPECT_THAT(err_, HasSubstr("the last 6 steps (1 to 6) were not finite"));
  ASSERT_EQ(train(keys + set_training("load_checkpoint", "whole") +
                  set_training("resume_training", name_of_step(4))),
            1)
      << said();
  EXPECT_EQ(steps().size(), 2U);
  EXPECT_THAT(err_, HasSubstr("the last 6 steps (1 to 6) were not finite"));
  EXPECT_THAT(out_ + err_, HasSubstr("5th bad step in a row"));
}

TEST_F(MonitoredRun, TheSumsOfSquaresOfAlignment) {
  ASSERT_EQ(train(" --set runner_wrapper.local_norm=True" + set_training("training_iters", "2") +
                  set_training("log_param_grad_norms", "True")),
            0)
      << said();
  const json line = steps().at(1);
  double sum = 0;
  for (const auto& [tag, value] : line.at("monitor").items()) {
    EXPECT_TRUE(tag.starts_with("local_squares/")) << tag;
    sum += value.get<double>();
  }
  EXPECT_NEAR(std::sqrt(sum), line.at("grad_norm").get<double>(), 1e-12);
  EXPECT_THAT(
      out_, HasSubstr("local_norm: language_model.embedding.word_embeddings.weight [260, 16], 4160 "
                      "elements, sum of squares "));
}

TEST_F(MonitoredRun, PrintsItsStructureAndEnds) {
  ASSERT_EQ(train(kOn + set_monitor("print_struct", "True")), 0) << said();
  EXPECT_THAT(out_,
              HasSubstr("parameter: language_model.embedding.word_embeddings.weight [260, 16]"));
  EXPECT_EQ(steps().size(), 1U);
}

// Weights that overflow float16 in the forward pass: the loss is not finite any more.
TEST_F(MonitoredRun, ANumberThatIsNotFiniteIsTracedToItsRankAndParameter) {
  const std::string huge = set("optimizer_config.learning_rate", "1e18");
  for (const std::string& key : {std::string(" --set check_for_nan_in_loss_and_grad=True"),
                                 set_training("check_for_nan_in_grad", "True")}) {
    EXPECT_EQ(train(huge + key + " --overwrite"), 1) << said();
    EXPECT_THAT(err_, AllOf(HasSubstr("device_accum_local_loss is "), HasSubstr(", loss is "),
                            HasSubstr(", local_norm is "), HasSubstr(", global_norm is "),
                            HasSubstr(", terminate training."), HasSubstr("step "),
                            HasSubstr(", rank 0: "), HasSubstr("nearest to the loss is ")));
  }
}

}  // namespace
}  // namespace tapestry::drills
