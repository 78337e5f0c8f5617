// Signals before anything is trained: nobody stays behind, nothing half-written does, and the end
// is told.
#include <fstream>

#include "tests/examples/gpt/drill_test.h"

namespace tapestry::drills {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Signals : public DrillTest {
 protected:
  // Names of files that are being written.
  std::vector<std::string> unfinished() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(dir_.path())) {
      const std::string name = entry.path().filename().string();
      if (name.find(".tmp-") != std::string::npos) {
        found.push_back(name);
      }
    }
    return found;
  }

  // Some seconds of work for whoever encodes it, or trains a tokenizer with it.
  void write_long_text() {
    std::ofstream text(dir_.file("long.txt"), std::ios::binary);
    uint64_t state = 1;
    for (int i = 0; i < 8'000'000; ++i) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      const uint64_t word = (state >> 33U) % 50'000;
      text << static_cast<char>('a' + word % 26) << static_cast<char>('a' + word / 26 % 26)
           << static_cast<char>('a' + word / 676 % 26) << word % 10 << (i % 12 == 11 ? '\n' : ' ');
    }
  }

  void expect_ended(pid_t child, int signal, const std::string& log, const char* name) {
    ASSERT_EQ(::kill(child, signal), 0);
    EXPECT_EQ(end_of(child), -signal) << dir_.read(log);
    EXPECT_THAT(dir_.read(log), HasSubstr(std::string(": ended by ") + name));
    EXPECT_THAT(unfinished(), IsEmpty());
  }

  // Processes with this word among theirs, whoever has started them.
  static int count_of(const std::string& word) {
    int count = 0;
    std::error_code gone;
    for (const auto& entry : fs::directory_iterator("/proc", gone)) {
      std::ifstream file(entry.path() / "cmdline", std::ios::binary);
      const std::string line(std::istreambuf_iterator<char>(file), {});
      count += line.find(word) == std::string::npos ? 0 : 1;
    }
    return count;
  }
};

// Whoever does not hear it goes on to exit code 0.
TEST_F(Signals, EndAPreparation) {
  write_long_text();
  const auto preparing = [&] { return !unfinished().empty(); };
  for (const auto& [signal, name] : {std::pair{SIGTERM, "SIGTERM"}, {SIGINT, "SIGINT"}}) {
    const pid_t child = launch(TAPESTRY_PREPROCESS_DATA,
                               {"preprocess_data", "--input", "long.txt", "--output_prefix", "long",
                                "--tokenizer_type", "byte"},
                               "prepare.log");
    wait_until("a preparation", preparing);
    expect_ended(child, signal, "prepare.log", name);
    const pid_t run =
        start("prepared", {"dataset_config.data_path=null", "dataset_config.text=[long.txt]",
                           "dataset_config.dataset_dir=data"});
    wait_until("a preparation of a run", preparing);
    expect_ended(run, signal, "prepared.log", name);
  }
  EXPECT_FALSE(exists("long_text_document.idx"));
}

TEST_F(Signals, EndTheTrainingOfATokenizer) {
  write_long_text();
  const pid_t child =
      launch(TAPESTRY_PREPROCESS_DATA,
             {"preprocess_data", "--input", "long.txt", "--output_prefix", "long",
              "--tokenizer_type", "sentencepiece", "--train_tokenizer", "--vocab_size", "8000"},
             "train.log");
  wait_until("a training", [&] {
    return dir_.read("train.log").find("training a tokenizer") != std::string::npos;
  });
  expect_ended(child, SIGTERM, "train.log", "SIGTERM");
  EXPECT_FALSE(exists("long.model"));
}

// At any time: the folder is one that a run can be started in, and no process is left.
TEST_F(Signals, DuringTheStart) {
  const std::vector<std::string> endless = {"training_config.training_iters=100000",
                                            "training_config.log_interval=1000000"};
  for (const int signal : {SIGTERM, SIGINT, SIGKILL}) {
    for (int milliseconds = 0; milliseconds <= 200; milliseconds += 20) {
      SCOPED_TRACE(concat("signal ", signal, " after ", milliseconds, " ms"));
      const pid_t child = start("output", endless);
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
      ASSERT_EQ(::kill(child, signal), 0);
      const int code = end_of(child);
      EXPECT_TRUE(code == -signal || (code == 0 && signal != SIGKILL)) << code;
      fs::remove(dir_.file("output.log"));
      ASSERT_EQ(train(" --overwrite --set training_config.training_iters=1"), 0) << said();
      EXPECT_THAT(unfinished(), IsEmpty());
      fs::remove_all(dir_.file("output"));
    }
  }
}

TEST_F(Signals, DuringTheStartUnderMpirun) {
  if (run("mpirun", "--version") != 0) {
    GTEST_SKIP() << "no mpirun";
  }
  for (const int signal : {SIGTERM, SIGKILL}) {
    for (int milliseconds = 40; milliseconds <= 640; milliseconds += 120) {
      SCOPED_TRACE(concat("signal ", signal, " after ", milliseconds, " ms"));
      const std::string output = "output_dir=" + dir_.file(concat("job_", signal, milliseconds));
      const pid_t child =
          launch("/usr/bin/env",
                 {"env", "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                  "OMP_NUM_THREADS=1", "mpirun", "--oversubscribe", "-n", "2",
                  TAPESTRY_PRETRAIN_GPT, "--config_path", "run.yaml", "--set",
                  "training_config.training_iters=100000", "--set", "training_config." + output},
                 "job.log");
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
      ASSERT_EQ(::kill(child, signal), 0);
      end_of(child);
      wait_until("the end of all ranks", [&] { return count_of(output) == 0; });
    }
  }
}

}  // namespace
}  // namespace tapestry::drills
