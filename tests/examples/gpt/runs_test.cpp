// Runs that meet in one output folder, runs that diverge, disks that are full: what is left.
#include <fcntl.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill
#include <unistd.h>

#include <chrono>
#include <thread>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "tests/examples/gpt/run_program.h"
#include "tests/says.h"

namespace tapestry::runs_test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string set(const std::string& key, const std::string& value) {
  return " --set " + key + "=" + value;
}
std::string set_training(const std::string& key, const std::string& value) {
  return set("training_config." + key, value);
}

class RunsTest : public ProgramTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(prepare_text());
    dir_.write("run.yaml", kTinyRun);
  }
  ~RunsTest() override {
    for (const pid_t child : children_) {
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
    }
  }
  int train(const std::string& arguments = "") {
    return pretrain("--config_path run.yaml" + arguments);
  }
  bool exists(const std::string& name) const { return fs::exists(dir_.file(name)); }

  // A run that goes on until it is ended, in the folder of the test; returns when it trains.
  pid_t start_long_run(const std::string& output) {
    const pid_t child = ::fork();
    if (child == 0) {
      const int log = ::open(dir_.file(output + ".log").c_str(), O_WRONLY | O_CREAT, 0600);
      ::dup2(log, STDOUT_FILENO);
      ::dup2(log, STDERR_FILENO);
      const std::string folder = "training_config.output_dir=" + output;
      if (::chdir(dir_.path().c_str()) == 0) {
        ::execl(TAPESTRY_PRETRAIN_GPT, "pretrain_gpt", "--config_path", "run.yaml", "--set",
                "training_config.training_iters=2000000", "--set", folder.c_str(), nullptr);
      }
      ::_exit(127);
    }
    children_.push_back(child);
    for (int i = 0; i < 600 && dir_.read(output + "/metrics.jsonl").empty(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return child;
  }
  // The exit code of a run that start_long_run began, or minus the signal.
  int end_of(pid_t child) {
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    std::erase(children_, child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  std::vector<pid_t> children_;
};

// The tutorial's file has no key of checkpoints.
TEST_F(RunsTest, WeightsAreSavedAtTheEndAndTheStartSaysSo) {
  ASSERT_EQ(train(), 0) << said();
  EXPECT_THAT(out_, Says("save_interval ... nothing is saved before"));
  EXPECT_TRUE(exists("output/checkpoint/step_00000003/model.safetensors"));
  ASSERT_EQ(generate("--checkpoint output --prompt And --max_new_tokens 3"), 0) << said();
  EXPECT_THAT(err_, HasSubstr("output/checkpoint/step_00000003"));
  ASSERT_EQ(train(set_training("output_dir", "none") + set_training("save_last", "False")), 0);
  EXPECT_THAT(out_, HasSubstr("checkpoints: none"));
  EXPECT_FALSE(exists("none/checkpoint"));
}

TEST_F(RunsTest, ASecondRunIsRefusedAndTouchesNothing) {
  ASSERT_EQ(train(), 0) << said();
  const auto before = tree();
  ASSERT_EQ(train(set_training("training_iters", "2")), 2) << said();
  for (const char* named : {"./output", "holds a run already", "3 steps", "step_00000003",
                            "--overwrite", "resume_training"}) {
    EXPECT_THAT(err_, Says(named));
  }
  EXPECT_EQ(tree(), before);
}

TEST_F(RunsTest, OverwritingMovesAsideAndTheLatestRunCounts) {
  ASSERT_EQ(train(set_training("training_iters", "5")), 0) << said();
  const std::string metrics = dir_.read("output/metrics.jsonl");
  const std::string weights = dir_.read("output/checkpoint/step_00000005/model.safetensors");
  ASSERT_EQ(train(set_training("training_iters", "2") + " --overwrite"), 0) << said();
  EXPECT_EQ(steps("output").size(), 2U);
  EXPECT_EQ(dir_.read("output/old/run_1/metrics.jsonl"), metrics);
  EXPECT_TRUE(dir_.read("output/old/run_1/checkpoint/step_00000005/model.safetensors") == weights);
  EXPECT_TRUE(exists("output/old/run_1/config.yaml"));
  EXPECT_THAT(out_, HasSubstr("output/old/run_1"));
  // Step 2 of this run, not step 5 of the one before.
  for (const char* folder : {"output", "output/checkpoint"}) {
    ASSERT_EQ(generate(concat("--checkpoint ", folder, " --prompt And --max_new_tokens 2")), 0);
    EXPECT_THAT(err_, HasSubstr("output/checkpoint/step_00000002"));
  }
  ASSERT_EQ(train(set_training("output_dir", "next") + set_training("load_checkpoint", "output")),
            0)
      << said();
  EXPECT_THAT(out_, HasSubstr("loaded output/checkpoint/step_00000002"));
  // A run that reads its start from what it moves.
  ASSERT_EQ(train(" --overwrite" + set_training("load_checkpoint", "output") +
                  set_training("save_last", "False")),
            0)
      << said();
  EXPECT_TRUE(exists("output/old/run_2/checkpoint/step_00000002"));
  EXPECT_EQ(generate("--checkpoint output --prompt And"), 2);
  EXPECT_THAT(err_, HasSubstr("output/old/run_2/checkpoint/step_00000002"));
}

TEST_F(RunsTest, WrongInputMovesNothingAside) {
  ASSERT_EQ(train(), 0) << said();
  const auto before = tree();
  EXPECT_EQ(train(" --overwrite" + set("dataset_config.data_path", "none")), 2) << said();
  EXPECT_EQ(train(" --overwrite" + set_training("load_checkpoint", "none")), 2) << said();
  EXPECT_EQ(tree(), before);
}

TEST_F(RunsTest, ARunThatIsGoingOnIsLeftAlone) {
  const pid_t first = start_long_run("output");
  EXPECT_EQ(train(), 2) << said();
  for (const std::string& named : {std::string("is in use by process ") + std::to_string(first),
                                   std::string("since 20"), std::string("--replace")}) {
    EXPECT_THAT(err_, Says(named));
  }
  EXPECT_EQ(train(" --overwrite"), 2) << said();
  EXPECT_THAT(dir_.read("output/run.lock"), HasSubstr("pid: " + std::to_string(first)));
  // Neither its log nor its metrics have anything of the others.
  EXPECT_THAT(dir_.read("output/log/rank_0/info.log"), Not(HasSubstr("is in use")));
  EXPECT_EQ(train(set_training("output_dir", "other")), 0) << said();
  ASSERT_EQ(::kill(first, SIGTERM), 0);
  EXPECT_EQ(end_of(first), 0) << dir_.read("output.log");
  EXPECT_FALSE(exists("output/run.lock"));
}

TEST_F(RunsTest, AKilledRunLeavesAStaleLock) {
  const pid_t first = start_long_run("output");
  ASSERT_EQ(::kill(first, SIGKILL), 0);
  EXPECT_EQ(end_of(first), -SIGKILL);
  ASSERT_TRUE(exists("output/run.lock"));
  EXPECT_EQ(train(), 2) << said();
  EXPECT_THAT(err_, HasSubstr("holds a run already"));
  EXPECT_EQ(train(" --overwrite"), 0) << said();
  EXPECT_FALSE(exists("output/run.lock"));
}

TEST_F(RunsTest, ReplacingEndsThatRunAndNoOther) {
  const pid_t first = start_long_run("output");
  const pid_t other = start_long_run("other");
  ASSERT_EQ(train(" --replace"), 0) << said();
  EXPECT_THAT(out_, HasSubstr("process " + std::to_string(first)));
  EXPECT_EQ(end_of(first), 0) << dir_.read("output.log");
  EXPECT_THAT(dir_.read("output.log"), HasSubstr("stopped on request after"));
  EXPECT_FALSE(fs::is_empty(dir_.file("output/old/run_1/checkpoint")));
  EXPECT_EQ(steps("output").size(), 3U);
  EXPECT_EQ(::kill(other, 0), 0);
  EXPECT_EQ(::waitpid(other, nullptr, WNOHANG), 0);  // still going
}

TEST_F(RunsTest, ARunThatDivergesFailsAndKeepsItsGoodCheckpoint) {
  // The rate grows without bound: some steps are fine.
  const std::string diverging =
      set_training("training_iters", "200") + set_training("save_interval", "1") +
      set_training("keep_checkpoint_max", "1") + set_training("log_interval", "1") +
      set("optimizer_config.learning_rate", "1e30");
  ASSERT_EQ(train(diverging), 1) << said();
  EXPECT_THAT(
      dir_.read("output/log/rank_0/info.log"),
      AllOf(HasSubstr("Loss: nan, "), HasSubstr("Mean_loss: nan, "), Not(HasSubstr("-nan"))));
  for (const char* named :
       {"the last 10 steps", "were not finite", "optimizer_config.learning_rate", "clip_grad"}) {
    EXPECT_THAT(err_, Says(named));
  }
  const std::vector<Json> all = steps("output");
  EXPECT_LT(all.size(), 20U);
  EXPECT_EQ(all.back().at("loss"), "nan");
  EXPECT_NE(generate("--checkpoint output --prompt And"), 0);  // nothing that passes for good
  // Fewer steps than the limit: it does not end well either.
  EXPECT_EQ(train(" --overwrite" + diverging + set_training("training_iters", "6")), 1) << said();
  EXPECT_THAT(err_, HasSubstr("were not finite"));
}

TEST_F(RunsTest, AFullDiskEndsTheRunAndLeavesTheLastCheckpoint) {
  // The limit of file sizes stands for the disk: the weights of one layer fit, what is logged does
  // not after a while.
  const std::string limit = "trap '' XFSZ; ulimit -f ";
  ASSERT_EQ(train(set_training("training_iters", "1")), 0) << said();
  const auto bytes = fs::file_size(dir_.file("output/checkpoint/step_00000001/model.safetensors"));
  const auto saving = [&](const char* steps) {
    return " --config_path run.yaml" + set_training("training_iters", steps) +
           set_training("save_interval", "1") + set_training("keep_checkpoint_max", "2");
  };
  // Blocks of 512 bytes for sh. Too small for the weights, not for the configuration.
  EXPECT_EQ(run(limit + std::to_string(bytes / 512 * 9 / 10) + "; " TAPESTRY_PRETRAIN_GPT,
                saving("6") + set_training("output_dir", "small")),
            1)
      << said();
  // Training goes on without them, but the last one has to be there.
  for (const char* text : {"THE CHECKPOINT OF STEP 1 COULD NOT BE SAVED", "File too large",
                           "step_00000006 ... there is no earlier one"}) {
    EXPECT_THAT(out_ + err_, Says(text));
  }
  EXPECT_EQ(steps("small").size(), 6U);
  EXPECT_THAT(err_, AllOf(HasSubstr("info.log"), Says("will be missing from ... it\n"),
                          Not(HasSubstr("LOG ERROR"))));
  EXPECT_TRUE(fs::is_empty(dir_.file("small/checkpoint")));
  // Without the trap: the program sees to that itself.
  EXPECT_EQ(run("ulimit -f " + std::to_string(bytes / 512 * 9 / 10) + "; " TAPESTRY_PRETRAIN_GPT,
                saving("6") + set_training("output_dir", "untrapped")),
            1)
      << said();
  // Large enough for a checkpoint's files, but not for the metrics of 1000 steps.
  EXPECT_EQ(run(limit + std::to_string(bytes / 512 * 4) + "; " TAPESTRY_PRETRAIN_GPT,
                saving("1000") + set_training("output_dir", "full")),
            1)
      << said();
  EXPECT_THAT(err_, HasSubstr("full/metrics.jsonl: cannot be written: File too large"));
  const size_t last = steps("full").size();  // whole lines
  EXPECT_GT(last, 10U);
  ASSERT_EQ(generate("--checkpoint full --prompt And --max_new_tokens 2"), 0) << said();
  EXPECT_THAT(err_, Says(std::to_string(last)));
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_.file("full/checkpoint")), {}), 2);
}

TEST_F(RunsTest, ADryRunShowsEverythingAndWritesNothing) {
  ASSERT_EQ(train(set_training("output_dir", "start")), 0) << said();
  const auto before = tree();
  ASSERT_EQ(train(" --dry_run" + set_training("load_checkpoint", "start") +
                  set_training("save_interval", "1") + set_training("training_iters", "100")),
            0)
      << said();
  EXPECT_EQ(err_, "");
  for (const char* shown :
       {"dp 1 | pp 1 | tp 1 | sp False | vpp None", "model: 6672 parameters", "memory: needs ",
        " are available", "data: byte tokenizer, 257 ids",
        "weights: start/checkpoint/step_00000003, 6672 parameters",
        "output: ./output, no run in it yet", "checkpoints: every 1 steps",
        "disk: ... checkpoint takes about ... 78.2 KiB, ... 6 ... 469.1 KiB;", " are free in ",
        "expected time: ", " a step, ", " for 100 steps; estimated from "}) {
    EXPECT_THAT(out_, Says(shown));
  }
  // The rest is for who asks.
  const std::vector<const char*> more = {"  hidden_size: 16\n", "parameters (6672): ", "total: "};
  for (const char* shown : more) {
    EXPECT_THAT(out_, Not(Says(shown)));
  }
  ASSERT_EQ(train(" --dry_run --verbose"), 0) << said();
  for (const char* shown : more) {
    EXPECT_THAT(out_, Says(shown));
  }
  EXPECT_EQ(train(" --verbose"), 2);
  EXPECT_THAT(err_, Says("--verbose ... says more of a ... --dry_run"));
  ASSERT_EQ(train(" --dry_run" + set_training("output_dir", "start")), 0) << said();
  EXPECT_THAT(out_, HasSubstr("output: start, holds a run of 3 steps"));
  EXPECT_EQ(tree(), before);
  EXPECT_FALSE(exists("output"));
}

TEST_F(RunsTest, ADryRunNamesAllThatStandsInTheWay) {
  ASSERT_EQ(train(set_training("output_dir", "start")), 0) << said();
  const auto before = tree();
  ASSERT_EQ(train(" --dry_run" + set("moe_config.enable_cold_hot_expert", "True") +
                  set("dataset_config.data_path", "none") +
                  set_training("load_checkpoint", "start") + set("model_config.num_layers", "2")),
            2)
      << said();
  for (const char* named :
       {"enable_cold_hot_expert: True is refused", "none.bin",
        "start/checkpoint/step_00000003: ... another model",
        "num_layers is 2, but n_layer of start/checkpoint/step_00000003/config.json is 1"}) {
    EXPECT_THAT(err_, Says(named));
  }
  for (const char* shown : {"not supported:\n", "data: none", "expected time: "}) {
    EXPECT_THAT(out_, Says(shown));
  }
  // Shapes and names alone.
  EXPECT_EQ(
      train(" --dry_run" + set("model_config.num_layers", "2") +
            set_training("load_checkpoint", "start/checkpoint/step_00000003/model.safetensors")),
      2);
  EXPECT_THAT(err_, Says("start/checkpoint/step_00000003/model.safetensors: ... do not fit"));
  EXPECT_THAT(err_, HasSubstr("missing: layers.1."));
  EXPECT_EQ(train(" --dry_run" + set_training("load_checkpoint", "nowhere")), 2);
  EXPECT_THAT(err_, HasSubstr("nowhere: there is no such file"));
  EXPECT_EQ(tree(), before);
}

// A text that a run would turn into tokens is left as it is.
TEST_F(RunsTest, ADryRunPreparesNothing) {
  dir_.write("run.yaml", replaced(kTinyRun, "data_path: text_text_document", "text: text.txt"));
  const auto before = tree();
  const std::string preset = TAPESTRY_SOURCE_DIR "/examples/gpt/pretrain_gpt_tiny.yaml";
  ASSERT_EQ(pretrain("--dry_run --config_path " + preset), 0) << said();
  EXPECT_THAT(out_, HasSubstr("on first use; not opened"));
  ASSERT_EQ(train(" --dry_run"), 0) << said();
  EXPECT_THAT(out_, Says("data: ... turned into tokens in ... ./dataset"));
  EXPECT_EQ(train(" --dry_run" + set("dataset_config.text", "[text.txt,none.txt]")), 2) << said();
  EXPECT_THAT(err_, HasSubstr("none.txt"));
  EXPECT_EQ(tree(), before);
  // What is prepared is opened, as the run left it.
  ASSERT_EQ(train(""), 0) << said();
  const std::string goes_on = " --dry_run" + set_training("resume_training", "True");
  ASSERT_EQ(train(goes_on), 0) << said();
  EXPECT_THAT(out_, HasSubstr("data: found the text as ./dataset/text_"));
  EXPECT_EQ(train(goes_on + set("dataset_config.split", "80,20,0")), 2) << said();
  EXPECT_THAT(err_, AllOf(Says("data are not those of"), HasSubstr("split")));
}

TEST_F(RunsTest, PathsMayNameTheHomeFolderAndVariables) {
  ASSERT_EQ(run("HOME='" + dir_.path() + "/home' RUNS=runs " TAPESTRY_PRETRAIN_GPT,
                "--config_path run.yaml --set 'training_config.output_dir=~/${RUNS}/1'"),
            0)
      << said();
  EXPECT_TRUE(exists("home/runs/1/metrics.jsonl"));
  EXPECT_THAT(dir_.read("home/runs/1/config.yaml"), Says(dir_.path() + "/home/runs/1"));
  dir_.write("run.yaml", replaced(kTinyRun, "data_path: text_text_document",
                                  "data_path: ${TAPESTRY_NOT_SET}/text"));
  EXPECT_EQ(train(), 2) << said();
  EXPECT_THAT(err_, Says("run.yaml:6:14: dataset_config.data_path: '${TAPESTRY_NOT_SET}/text': ... "
                         "environment variable ... TAPESTRY_NOT_SET"));
}

}  // namespace
}  // namespace tapestry::runs_test
