// What the drills share: a run that saves every second step, its checkpoints, and runs to be ended.
#pragma once

#include <fcntl.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>

#include "autograd/tensor/error.h"
#include "tests/examples/gpt/run_program.h"

namespace tapestry::drills {

inline std::string set(const std::string& key, const std::string& value) {
  return " --set " + key + "=" + value;
}
inline std::string set_training(const std::string& key, const std::string& value) {
  return set("training_config." + key, value);
}
inline const std::string kResume = set_training("resume_training", "True");

/// Eight steps with a checkpoint at every second one, in `output` unless told otherwise.
class DrillTest : public ProgramTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(prepare_text());
    dir_.write("run.yaml",
               replaced(kTinyRun, "training_iters: 3", "training_iters: 8\n  save_interval: 2"));
  }
  ~DrillTest() override {
    for (const pid_t child : children_) {
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
    }
  }
  int train(const std::string& arguments = "") {
    return pretrain("--config_path run.yaml" + arguments);
  }
  bool exists(const std::string& name) const { return std::filesystem::exists(dir_.file(name)); }

  static std::string name_of_step(int64_t step) {
    const std::string digits = std::to_string(step);
    return "step_" + std::string(8 - digits.size(), '0') + digits;
  }
  std::string checkpoint(int64_t step, const std::string& output = "output") const {
    return output + "/checkpoint/" + name_of_step(step);
  }
  std::string weights(int64_t step, const std::string& output = "output") const {
    return dir_.read(checkpoint(step, output) + "/model.safetensors");
  }
  std::string moments(int64_t step, const std::string& output = "output") const {
    return dir_.read(checkpoint(step, output) + "/training_state.safetensors");
  }
  /// Names in `output`/checkpoint, hidden ones included, sorted.
  std::vector<std::string> saved(const std::string& output = "output") const {
    std::vector<std::string> names;
    std::error_code none;
    for (const auto& entry :
         std::filesystem::directory_iterator(dir_.file(output + "/checkpoint"), none)) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  /// The first lines that are not the same; empty if the texts are.
  static std::string first_difference(const std::string& a, const std::string& b) {
    std::istringstream left(a);
    std::istringstream right(b);
    std::string x;
    std::string y;
    while (std::getline(left, x) || !left.eof()) {
      if (!std::getline(right, y) || x != y) {
        return x + "\n" + y;
      }
    }
    return a == b ? std::string() : "another number of lines";
  }
  void expect_same_end(int64_t step, const std::string& output, const std::string& reference) {
    EXPECT_EQ(first_difference(metrics(output), metrics(reference)), "");
    EXPECT_FALSE(weights(step, reference).empty());
    EXPECT_TRUE(weights(step, output) == weights(step, reference));
    EXPECT_TRUE(moments(step, output) == moments(step, reference));
  }

  /// Starts the program; its words are then in `output`.log.
  pid_t start(const std::string& output, const std::vector<std::string>& settings) {
    std::vector<std::string> words = {"pretrain_gpt", "--config_path", "run.yaml", "--set",
                                      "training_config.output_dir=" + output};
    for (const std::string& setting : settings) {
      words.insert(words.end(), {"--set", setting});
    }
    return launch(TAPESTRY_PRETRAIN_GPT, words, output + ".log");
  }
  /// Starts a program, with its name as the first word and what it says in `log`.
  pid_t launch(const char* program, std::vector<std::string> words, const std::string& log_name) {
    const pid_t child = ::fork();
    if (child == 0) {
      const int log = ::open(dir_.file(log_name).c_str(), O_WRONLY | O_CREAT, 0600);
      ::dup2(log, STDOUT_FILENO);
      ::dup2(log, STDERR_FILENO);
      std::vector<char*> arguments;
      for (std::string& word : words) {
        arguments.push_back(word.data());
      }
      arguments.push_back(nullptr);
      if (::chdir(dir_.path().c_str()) == 0) {
        ::execv(program, arguments.data());
      }
      ::_exit(127);
    }
    children_.push_back(child);
    return child;
  }
  /// Waits until something holds; a minute without it is a failure.
  void wait_until(const std::string& what, const std::function<bool()>& holds) {
    for (int i = 0; i < 12000; ++i) {
      if (holds()) {
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    FAIL() << "waited in vain for " << what;
  }
  void wait_until_said(const std::string& output, const std::string& text) {
    wait_until(text, [&] { return dir_.read(output + ".log").find(text) != std::string::npos; });
  }
  /// The exit code of what start() began, or minus the signal.
  int end_of(pid_t child) {
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    std::erase(children_, child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  std::vector<pid_t> children_;
};

}  // namespace tapestry::drills
