// How runs end before their time, what they keep, and how they go on.
#include "tests/examples/gpt/drill_test.h"
#include "tests/says.h"

namespace tapestry::drills {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class StopAndGo : public DrillTest {
 protected:
  // A run that was stopped has saved its last step; gone on with, it ends as one that was not.
  void expect_whole_after_stop(const std::string& arguments) {
    const auto last = static_cast<int64_t>(steps().size());
    ASSERT_GT(last, 0);
    EXPECT_EQ(saved().back(), name_of_step(last));
    EXPECT_FALSE(saved().front().starts_with(".")) << saved().front();
    EXPECT_FALSE(exists("output/run.lock"));
    ASSERT_EQ(train(kResume + arguments), 0) << said();
    EXPECT_THAT(out_, Says(concat("going on after step ", last)));
    ASSERT_EQ(train(arguments + set_training("output_dir", "undisturbed")), 0) << said();
    EXPECT_EQ(run(TAPESTRY_COMPARE_CHECKPOINTS, "output undisturbed"), 0) << said();
  }
};

const std::string k400 = set_training("training_iters", "400") +
                         set_training("save_interval", "1000000") +
                         set_training("log_interval", "1000000");

TEST_F(StopAndGo, ASignalDuringASaveInTheBackground) {
  const pid_t child =
      start("output", {"training_config.training_iters=400", "training_config.save_interval=1",
                       "training_config.async_save=True", "training_config.log_interval=1000000"});
  wait_until_said("output", "saved ");
  wait_until("a save under way", [&] {
    const std::vector<std::string> names = saved();
    return !names.empty() && names.front().starts_with(".step_");
  });
  ASSERT_EQ(::kill(child, SIGTERM), 0);
  EXPECT_EQ(end_of(child), 0) << dir_.read("output.log");
  EXPECT_THAT(dir_.read("output.log"), HasSubstr("stopped on request after"));
  expect_whole_after_stop(k400);
}

TEST_F(StopAndGo, ATimeLimitSavesAndEnds) {
  ASSERT_EQ(train(k400 + set_training("exit_duration_in_mins", "0.0003")), 0) << said();
  EXPECT_THAT(out_, HasSubstr("stopped on request after"));
  expect_whole_after_stop(k400);
}

TEST_F(StopAndGo, SecondsBetweenSaves) {
  const pid_t child =
      start("output",
            {"training_config.training_iters=2000000", "training_config.save_interval=null",
             "training_config.save_interval_seconds=0.1",
             "training_config.keep_checkpoint_max=1000", "training_config.log_interval=1000000"});
  wait_until("three checkpoints", [&] { return saved().size() >= 3; });
  ASSERT_EQ(::kill(child, SIGTERM), 0);
  EXPECT_EQ(end_of(child), 0) << dir_.read("output.log");
  const auto last = static_cast<int64_t>(steps().size());
  EXPECT_LT(static_cast<int64_t>(saved().size()), last);  // not after every step
  EXPECT_EQ(saved().back(), name_of_step(last));
}

// "greater" makes an early evaluation the best one: its checkpoint is older than those that are
// kept.
TEST_F(StopAndGo, TheBestCheckpointIsKept) {
  const std::string keys = set_training("eval_interval", "2") + set_training("eval_iters", "1") +
                           set_training("keep_checkpoint_max", "1") +
                           set_training("best_metric_comparison", "greater");
  dir_.write("run.yaml", replaced(dir_.read("run.yaml"), "split: 90,10,0", "split: 80,20,0"));
  ASSERT_EQ(train(keys), 0) << said();
  const auto best_of = [&] {
    int64_t step = 0;
    double value = 0;
    for (const nlohmann::json& line : steps()) {
      if (line.contains("eval_loss") && line["eval_loss"] > value) {
        value = line["eval_loss"];
        step = line["step"];
      }
    }
    const auto named = nlohmann::json::parse(dir_.read("output/checkpoint/best.json"));
    EXPECT_EQ(named.at("step"), step);
    EXPECT_EQ(named.at("checkpoint"), name_of_step(step));
    EXPECT_EQ(named.at("metric"), "loss");
    EXPECT_EQ(named.at("value").get<float>(), static_cast<float>(value));
    return step;
  };
  const int64_t best = best_of();
  ASSERT_LT(best, 8);
  EXPECT_THAT(saved(), ElementsAre("best.json", name_of_step(best), name_of_step(8)));
  // Going on knows the best so far, and keeps it.
  ASSERT_EQ(train(keys + kResume + set_training("training_iters", "12")), 0) << said();
  EXPECT_EQ(best_of(), best);
  EXPECT_THAT(saved(), ElementsAre("best.json", name_of_step(best), name_of_step(12)));
  // An evaluation is saved for being the best, whenever it is.
  ASSERT_EQ(train(keys + set_training("save_interval", "1000000") + " --overwrite"), 0) << said();
  EXPECT_THAT(saved(), AllOf(Contains(name_of_step(best)), Not(Contains(name_of_step(6)))));
  EXPECT_EQ(best_of(), best);
}

// best.json and what is kept follow the checkpoints that there are.
TEST_F(StopAndGo, ABestCheckpointThatIsGoneIsNotNamed) {
  const std::string keys = set_training("eval_interval", "2") + set_training("eval_iters", "1") +
                           set_training("best_metric_comparison", "less");
  dir_.write("run.yaml", replaced(dir_.read("run.yaml"), "split: 90,10,0", "split: 80,20,0"));
  const auto named = [&] {
    return nlohmann::json::parse(dir_.read("output/checkpoint/best.json"))
        .at("checkpoint")
        .get<std::string>();
  };
  ASSERT_EQ(train(keys), 0) << said();
  ASSERT_EQ(named(), name_of_step(8));  // the loss falls
  // Back to step 4, the best until then: what came later goes with what named it.
  ASSERT_EQ(train(keys + set_training("resume_training", name_of_step(4)) +
                  set_training("training_iters", "5") + set_training("eval_interval", "100")),
            0)
      << said();
  EXPECT_EQ(named(), name_of_step(4));
  EXPECT_THAT(dir_.read("output/old/run_1/checkpoint/best.json"), Says(name_of_step(8)));
  fs::remove_all(dir_.file(checkpoint(4)));
  ASSERT_EQ(train(keys + kResume + set_training("training_iters", "6")), 0) << said();
  EXPECT_THAT(out_ + err_, HasSubstr("the best checkpoint, ./output/checkpoint/step_00000004, is "
                                     "not there any more"));
  EXPECT_EQ(named(), name_of_step(6));
}

// With the states that each of them can have, and none: in both formats of files.
TEST_F(StopAndGo, EveryOptimizerGoesOnExactly) {
  const auto key = [](const std::string& name, const std::string& value) {
    return set("optimizer_config." + name, value);
  };
  const std::string bf16 =
      set_training("bf16", "True") + set("model_config.params_dtype", "bfloat16");
  const std::vector<std::pair<std::string, std::string>> optimizers = {
      {"SGD", ""},
      {"SGD", key("momentum", "0.9")},
      {"SGD", bf16},
      {"Adam", ""},
      {"AdamW", key("exp_avg_dtype", "bfloat16") + key("exp_avg_sq_dtype", "bfloat16")},
      {"AdamW", bf16 + key("store_param_remainders", "True")},
      {"AdamWZeRO", ""},
      {"Lion", ""},
      {"Came", ""},
      {"Adafactor", ""},
      {"Adafactor", key("momentum", "0.9")},
      {"Muon", ""},
      {"Muon", key("momentum", "0")},
      {"Muon", key("ns_coefficients", "[[[3.4,-4.7,2.0],3],[[2.0,-1.5,0.5],1]]") +
                   key("adamw_include", "[output_layer]") + key("weight_decay", "0.1") +
                   key("weight_decay_exclude", "[linear_fc1]") +
                   key("lr_decay_style", "warm_restarts") + key("lr_restart_iters", "3") +
                   key("lr_restart_mult", "2")}};
  const std::string four = set_training("training_iters", "4");
  const std::string ckpt = set_training("ckpt_format", "ckpt");
  int number = 0;
  for (const auto& [type, more] : optimizers) {
    SCOPED_TRACE(type + more);
    const std::string keys = key("optimizer_type", type) + more;
    const std::string whole = concat("whole_", ++number);
    ASSERT_EQ(train(keys + set_training("output_dir", whole)), 0) << said();
    for (const std::string& format : {std::string(), ckpt}) {
      const std::string name = concat(format.empty() ? "half_" : "ckpt_half_", number);
      const std::string half = keys + set_training("output_dir", name);
      ASSERT_EQ(train(half + format + four), 0) << said();
      EXPECT_EQ(exists(checkpoint(4, name) + "/training_state.safetensors") ||
                    exists(checkpoint(4, name) + "/network-training_state.ckpt"),
                type != "SGD" || more.find("momentum") != std::string::npos);
      ASSERT_EQ(train(half + kResume), 0) << said();  // into safetensors
      EXPECT_THAT(out_, HasSubstr("going on after step 4"));
      expect_same_end(8, name, whole);
    }
  }
}

TEST_F(StopAndGo, AnOptimizerThatStartsAnew) {
  const std::string twelve = set_training("training_iters", "12");
  ASSERT_EQ(train(twelve + set_training("output_dir", "whole")), 0) << said();
  ASSERT_EQ(train(), 0) << said();
  ASSERT_EQ(train(twelve + kResume + set_training("no_load_optim", "True")), 0) << said();
  const std::vector<nlohmann::json> found = steps();
  const std::vector<nlohmann::json> whole = steps("whole");
  ASSERT_EQ(found.size(), 12U);
  // The weights, the data and the schedule go on; the moments do not.
  EXPECT_EQ(found[8].at("loss"), whole[8].at("loss"));
  EXPECT_NE(found[9].at("loss"), whole[9].at("loss"));
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].at("lr"), whole[i].at("lr"));
    EXPECT_EQ(found[i].at("step"), whole[i].at("step"));
  }
  EXPECT_FALSE(moments(12) == moments(12, "whole"));
}

TEST_F(StopAndGo, RunsAreCompared) {
  const auto compare = [&](const std::string& words) {
    return run(TAPESTRY_COMPARE_CHECKPOINTS, words);
  };
  ASSERT_EQ(train(), 0) << said();
  ASSERT_EQ(train(set_training("output_dir", "same")), 0) << said();
  EXPECT_EQ(compare("output same"), 0) << said();
  for (const char* part : {"weights: the same bits", "optimizer state: the same bits",
                           "position: the same bits", "metrics: the same bits", "\nthe same\n"}) {
    EXPECT_THAT(out_, Says(part));
  }
  ASSERT_EQ(train(set_training("output_dir", "near") +
                  set("optimizer_config.learning_rate", "1.0001e-3")),
            0);
  EXPECT_EQ(compare("output near"), 1) << said();
  EXPECT_THAT(out_, AllOf(HasSubstr("weights: largest difference"), HasSubstr("\ndifferent\n")));
  EXPECT_EQ(compare("output near --bound 1e-5"), 1) << said();
  EXPECT_EQ(compare(checkpoint(8) + " " + checkpoint(8, "near") + " --bound 0.5"), 0) << said();
  EXPECT_EQ(compare(checkpoint(8) + " " + checkpoint(6, "near") + " --bound 0.5"), 1) << said();
  EXPECT_THAT(err_, HasSubstr("is 8 in one of the two, and 6 in the other"));
  EXPECT_EQ(train(set_training("output_dir", "short") + set_training("training_iters", "2")), 0);
  fs::rename(dir_.file(checkpoint(2, "short")), dir_.file(checkpoint(8, "short")));
  EXPECT_EQ(compare("output short"), 1) << said();
  EXPECT_EQ(compare("output"), 2) << said();
  EXPECT_EQ(compare("output none"), 2) << said();
  EXPECT_EQ(compare("output same --bound -1"), 2) << said();
}

// A run that goes on with another folder's checkpoint has the same command for each of its starts.
class StartedAgain : public StopAndGo {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(StopAndGo::SetUp());
    ASSERT_EQ(train(set_training("output_dir", "whole") + set_training("training_iters", "12")), 0);
    ASSERT_EQ(train(set_training("output_dir", "first") + set_training("training_iters", "4")), 0);
  }
  int go_on(int64_t steps, const std::string& more = "") {
    return train(kResume + from_first_ + set_training("training_iters", std::to_string(steps)) +
                 more);
  }
  void expect_end_of_whole(size_t first_step) {
    const std::vector<nlohmann::json> lines = this->steps();
    const std::vector<nlohmann::json> all = this->steps("whole");
    ASSERT_EQ(lines.size(), 13 - first_step);
    for (size_t i = 0; i < lines.size(); ++i) {
      EXPECT_EQ(lines[i].at("step"), i + first_step);
      EXPECT_EQ(lines[i].at("loss"), all[i + first_step - 1].at("loss"));
    }
    EXPECT_TRUE(weights(12) == weights(12, "whole"));
    EXPECT_TRUE(moments(12) == moments(12, "whole"));
    EXPECT_EQ(saved("first").back(), name_of_step(4));  // left as it is
  }

  const std::string from_first_ = set_training("load_checkpoint", "first");
};

TEST_F(StartedAgain, ItGoesOnWithItsOwnCheckpoints) {
  ASSERT_EQ(go_on(8), 0) << said();
  EXPECT_THAT(out_, HasSubstr("going on after step 4 with first/checkpoint/step_00000004"));
  EXPECT_THAT(out_, HasSubstr("finished after 8 steps, 4 of them in this start: loss "));
  ASSERT_EQ(go_on(12, " --dry_run"), 0) << said();
  EXPECT_THAT(out_, AllOf(HasSubstr("resume_training: goes on after step 8 with "
                                    "./output/checkpoint/step_00000008"),
                          HasSubstr("holds a run of 8 steps, last written"),
                          HasSubstr("which goes on"), HasSubstr(" for 4 steps; ")));
  ASSERT_EQ(go_on(12), 0) << said();
  EXPECT_THAT(out_, AllOf(HasSubstr("going on after step 8 with ./output/checkpoint/step_00000008"),
                          Says("./output ... load_checkpoint ... its own checkpoints"),
                          HasSubstr("finished after 12 steps, 4 of them in this start: loss ")));
  expect_end_of_whole(5);
  ASSERT_EQ(go_on(12), 0) << said();
  EXPECT_THAT(out_, Says("12 ... them in this start"));
  // A checkpoint of its own by its name; what came later is put aside.
  ASSERT_EQ(train(from_first_ + set_training("resume_training", name_of_step(6)) +
                  set_training("training_iters", "12")),
            0)
      << said();
  EXPECT_THAT(out_, HasSubstr("going on after step 6 with ./output/checkpoint/step_00000006"));
  expect_end_of_whole(5);
}

TEST_F(StartedAgain, WithoutACheckpointOfItsOwnItBeginsOnceMore) {
  ASSERT_EQ(go_on(7, set_training("save_interval", "100") + set_training("save_last", "False")), 0)
      << said();
  EXPECT_TRUE(saved().empty());
  ASSERT_EQ(go_on(12), 0) << said();
  EXPECT_THAT(out_, AllOf(HasSubstr("going on after step 4 with first/checkpoint/step_00000004"),
                          Says("of its own yet")));
  expect_end_of_whole(5);
}

TEST_F(StartedAgain, ARunThatBeganWithSomethingElseIsNotGoneOnWith) {
  ASSERT_EQ(train(), 0) << said();
  const auto before = tree();
  EXPECT_EQ(go_on(12), 2) << said();
  EXPECT_THAT(err_, AllOf(HasSubstr("holds a run already"), HasSubstr("load_checkpoint")));
  EXPECT_EQ(train(from_first_ + set_training("resume_training", name_of_step(4))), 2) << said();
  EXPECT_EQ(tree(), before);
  // Anew from the other folder, and once more.
  ASSERT_EQ(go_on(6, " --overwrite"), 0) << said();
  EXPECT_THAT(out_, HasSubstr("going on after step 4 with first/"));
  ASSERT_EQ(go_on(6, " --overwrite"), 0) << said();
  EXPECT_THAT(out_, HasSubstr("going on after step 4 with first/"));
  EXPECT_TRUE(exists("output/old/run_2/metrics.jsonl"));
  ASSERT_EQ(go_on(12), 0) << said();
  expect_end_of_whole(5);
}

// MindSpore's files in place of safetensors.
class CkptFormat : public StopAndGo {
 protected:
  const std::string ckpt_ = set_training("ckpt_format", "ckpt") + set_training("prefix", "mine");
  const std::string twelve_ = set_training("training_iters", "12");
};

TEST_F(CkptFormat, GoesOnExactlyAndIntoTheOtherFormat) {
  ASSERT_EQ(train(twelve_ + set_training("output_dir", "whole")), 0) << said();
  ASSERT_EQ(
      train(ckpt_ + set_training("max_shard_size", "1000") + set_training("training_iters", "4")),
      0)
      << said();
  for (const char* name : {"mine.ckpt", "mine-training_state.ckpt", "training_state.json",
                           "config.yaml", "config.json", "manifest.json"}) {
    EXPECT_TRUE(exists(checkpoint(4) + "/" + name)) << name;
  }
  EXPECT_FALSE(exists(checkpoint(4) + "/model.safetensors"));
  // On in the same format, then in the other: the end is that of a run in one piece.
  ASSERT_EQ(train(ckpt_ + kResume), 0) << said();
  ASSERT_EQ(train(kResume + twelve_), 0) << said();
  EXPECT_THAT(out_, HasSubstr("going on after step 8 "));
  expect_same_end(12, "output", "whole");
  // And from safetensors into the other.
  ASSERT_EQ(train(ckpt_ + twelve_ + set_training("output_dir", "ckpt_whole")), 0) << said();
  ASSERT_EQ(train(ckpt_ + twelve_ + set_training("resume_training", name_of_step(6)) +
                  set_training("load_checkpoint", "whole") + set_training("output_dir", "turned")),
            0)
      << said();
  const auto same = [&](const std::string& name) {
    const std::string bytes = dir_.read(checkpoint(12, "turned") + "/" + name);
    return !bytes.empty() && bytes == dir_.read(checkpoint(12, "ckpt_whole") + "/" + name);
  };
  EXPECT_TRUE(same("mine.ckpt"));
  EXPECT_TRUE(same("mine-training_state.ckpt"));
  EXPECT_EQ(run(TAPESTRY_COMPARE_CHECKPOINTS, "turned/checkpoint ckpt_whole/checkpoint"), 0)
      << said();
  EXPECT_THAT(out_, HasSubstr("optimizer state: the same bits"));
}

TEST_F(CkptFormat, IsReadByAllThatReadsWeights) {
  ASSERT_EQ(train(ckpt_), 0) << said();
  ASSERT_EQ(train(set_training("output_dir", "other")), 0) << said();
  for (const char* command : {"generate", "evaluate"}) {
    const auto say = [&](const std::string& folder) {
      EXPECT_EQ(*command == 'g' ? generate("--checkpoint " + folder + " --prompt And --seed 3")
                                : pretrain("--evaluate " + folder),
                0)
          << said();
      return out_.substr(out_.find(*command == 'g' ? "And" : "eval:"));
    };
    EXPECT_EQ(say("output"), say("other"));
  }
  // A new run from the folder, or from the file alone, wherever it is from.
  fs::copy_file(dir_.file(checkpoint(8) + "/mine.ckpt"), dir_.file("theirs.ckpt"));
  const std::string fresh = set_training("training_iters", "2") + set_training("output_dir", "to_");
  ASSERT_EQ(train(fresh + "1" + set_training("load_checkpoint", "other")), 0) << said();
  ASSERT_EQ(train(fresh + "2" + set_training("load_checkpoint", "output")), 0) << said();
  ASSERT_EQ(train(fresh + "3" + set_training("load_checkpoint", "theirs.ckpt")), 0) << said();
  EXPECT_TRUE(weights(2, "to_1") == weights(2, "to_2"));
  EXPECT_TRUE(weights(2, "to_1") == weights(2, "to_3"));
  ASSERT_EQ(train(" --dry_run" + set_training("load_checkpoint", "theirs.ckpt") + fresh + "4"), 0);
  EXPECT_THAT(out_, HasSubstr("weights: theirs.ckpt, 6672 parameters"));

  std::string bytes = dir_.read("theirs.ckpt");
  dir_.write("theirs.ckpt", bytes.substr(0, bytes.size() - 9));
  EXPECT_EQ(train(fresh + "4" + set_training("load_checkpoint", "theirs.ckpt")), 2) << said();
  EXPECT_THAT(err_, AllOf(HasSubstr("theirs.ckpt: "), HasSubstr("truncated")));
  // A bit in either file, where a run is to go on.
  for (const char* name : {"mine.ckpt", "mine-training_state.ckpt"}) {
    const std::string path = checkpoint(8) + "/" + name;
    const std::string good = dir_.read(path);
    bytes = good;
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
    dir_.write(path, bytes);
    EXPECT_EQ(train(ckpt_ + kResume + twelve_), 2) << said();
    EXPECT_THAT(err_, AllOf(Says(concat(name, ": ... not what was written")),
                            HasSubstr("resume_training: step_00000006")));
    dir_.write(path, good);
  }
  bytes = dir_.read(checkpoint(8) + "/mine.ckpt");
  dir_.write(checkpoint(8) + "/other.ckpt", bytes);
  EXPECT_EQ(train(fresh + "4" + set_training("load_checkpoint", "output")), 2) << said();
  EXPECT_THAT(err_, HasSubstr("holds 2 files of this kind, mine.ckpt and other.ckpt"));
}

TEST_F(StopAndGo, OneCheckpointForEverySoManyMinutes) {
  const std::string often = set_training("save_interval", "1");
  ASSERT_EQ(train(often + set_training("keep_checkpoint_per_n_minutes", "1000")), 0) << said();
  EXPECT_THAT(out_, Says("1000 ... newest are kept"));
  EXPECT_THAT(saved(), ElementsAre(name_of_step(1), name_of_step(8)));
  // The one that begins an interval stays; those between go when a later one is there.
  ASSERT_EQ(train(often + set_training("output_dir", "all") +
                  set_training("keep_checkpoint_per_n_minutes", "1e-9")),
            0)
      << said();
  EXPECT_EQ(saved("all").size(), 8U);
}

// A step that is trained is a step, whatever the number of steps asked for by now.
// A run goes on where its folder lies now, not where it has been.
TEST_F(StopAndGo, AMovedFolderGoesOnWhereItLies) {
  const std::string goal = " --set training_config.training_iters=8";
  ASSERT_EQ(train(set_training("output_dir", "whole")), 0) << said();
  for (const char* start : {"--resume 'runs/a b'", "--resume 'runs/a b/checkpoint'",
                            "--resume 'runs/a b/checkpoint/step_00000004'",
                            "--config_path 'runs/a b/config.yaml' --set "
                            "training_config.resume_training=True"}) {
    SCOPED_TRACE(start);
    fs::remove_all(dir_.file("runs"));
    fs::create_directory(dir_.file("runs"));
    ASSERT_EQ(train(set_training("training_iters", "4")), 0) << said();
    fs::rename(dir_.file("output"), dir_.file("runs/a b"));
    ASSERT_EQ(pretrain(start + goal), 0) << said();
    EXPECT_THAT(out_, HasSubstr("going on after step 4 with runs/a b/checkpoint/step_00000004"));
    EXPECT_FALSE(exists("output")) << said();
    expect_same_end(8, "runs/a b", "whole");
    // It says of itself that it lies here.
    EXPECT_THAT(dir_.read("runs/a b/config.yaml"), HasSubstr("output_dir: \"runs/a b\""));
  }
}

// Also where the run has once gone back to a checkpoint of its own.
TEST_F(StopAndGo, AMovedFolderGoesOnWithItsLatestCheckpoint) {
  ASSERT_EQ(train(set_training("training_iters", "4")), 0) << said();
  ASSERT_EQ(train(kResume + set_training("training_iters", "6") +
                  set_training("load_checkpoint", "./output/checkpoint/step_00000004")),
            0)
      << said();
  fs::rename(dir_.file("output"), dir_.file("moved"));
  ASSERT_EQ(pretrain("--resume moved/ --set training_config.training_iters=8"), 0) << said();
  EXPECT_THAT(out_, HasSubstr("going on after step 6 with moved/checkpoint/step_00000006"));
  EXPECT_FALSE(exists("output"));
}

// As the next run's file it starts a new run, in the folder that it names.
TEST_F(StopAndGo, AConfigurationOfAnotherRunIsAFileLikeAnyOther) {
  ASSERT_EQ(train(set_training("training_iters", "2")), 0) << said();
  fs::rename(dir_.file("output"), dir_.file("moved"));
  ASSERT_EQ(pretrain("--config_path moved/config.yaml"), 0) << said();
  EXPECT_TRUE(exists("output/checkpoint/step_00000002"));
  ASSERT_EQ(pretrain("--config_path moved/config.yaml --set training_config.resume_training=True "
                     "--set training_config.output_dir=third"),
            0)
      << said();
  EXPECT_TRUE(exists("third/checkpoint/step_00000002"));
}

TEST_F(StopAndGo, WhatCannotBeResumedIsNamed) {
  dir_.write("empty/notes.txt", "none");
  const auto refuses = [&](const std::string& arguments, const std::string& why) {
    EXPECT_EQ(pretrain(arguments), 2) << said();
    EXPECT_THAT(err_, Says(why));
  };
  refuses("--resume nowhere", "nowhere: ... no such folder");
  refuses("--resume empty", "empty: ... its configuration in ... empty/config.yaml");
  refuses("--resume empty --overwrite", "leave out --overwrite");
  refuses("--resume empty --config_path run.yaml", "leave out --config_path");
}

// A folder of runs is none of them: the newest one is offered.
TEST_F(StopAndGo, TheNewestRunBelowAFolderIsOffered) {
  ASSERT_EQ(train(set_training("training_iters", "2") + set_training("output_dir", "runs/a")), 0);
  ASSERT_EQ(train(set_training("training_iters", "3") + set_training("output_dir", "runs/sub/b")),
            0);
  EXPECT_EQ(generate("--checkpoint runs --prompt And"), 2);
  EXPECT_THAT(err_, Says("newest ... is runs/sub/b/checkpoint/step_00000003"));
}

TEST_F(StopAndGo, NothingLeftToDoChangesNothing) {
  ASSERT_EQ(train(), 0) << said();
  const std::string lines = dir_.read("output/metrics.jsonl");
  ASSERT_EQ(train(kResume + " --dry_run"), 0) << said();
  EXPECT_THAT(out_, HasSubstr("expected time: none, all 8 steps are done"));
  ASSERT_EQ(train(kResume), 0) << said();
  EXPECT_EQ(dir_.read("output/metrics.jsonl"), lines);
  EXPECT_THAT(saved(),
              ElementsAre(name_of_step(2), name_of_step(4), name_of_step(6), name_of_step(8)));
}

}  // namespace
}  // namespace tapestry::drills
