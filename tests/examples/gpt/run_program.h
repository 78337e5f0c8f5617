// What the tests of the programs share: a folder, a tiny run in it, the programs, their output.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "autograd/io/json.h"
#include "tests/temp_dir.h"

namespace tapestry {

/// A run of three steps on text_text_document with the byte tokenizer. The tests of messages count
/// its lines.
inline constexpr const char* kTinyRun =
    "training_config:\n"
    "  training_iters: 3\n"
    "  seed: 7\n"
    "  num_threads: 1\n"
    "dataset_config:\n"
    "  data_path: text_text_document\n"
    "  tokenizer_type: byte\n"
    "  batch_size: 2\n"
    "  split: 90,10,0\n"
    "model_config:\n"
    "  vocab_size: 260\n"
    "  num_layers: 1\n"
    "  hidden_size: 16\n"
    "  ffn_hidden_size: 32\n"
    "  num_attention_heads: 2\n"
    "  seq_length: 16\n"
    "optimizer_config:\n"
    "  learning_rate: 1e-3\n";

/// `text` with its only occurrence of `from` replaced.
inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  EXPECT_EQ(text.find(from, at + 1), std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

/// Sentences that differ, and that a small model can learn.
inline std::string sample_text(int sentences) {
  const char* who[] = {"the king", "a servant", "the prophet", "his brother"};
  const char* did[] = {"went up to", "looked upon", "departed from"};
  const char* where[] = {"the city", "the mountain", "the house", "the river", "the land"};
  std::string text;
  for (int i = 0; i < sentences; ++i) {
    text += std::string("And ") + who[i * 7 % 4] + " " + did[i * 5 % 3] + " " + where[i * 11 % 5] +
            (i % 4 == 3 ? ".\n" : "; ");
  }
  return text;
}

/// Runs programs in a folder of its own.
class ProgramTest : public ::testing::Test {
 protected:
  /// `program` is one of the TAPESTRY_... paths. Returns the exit code, or minus the signal;
  /// standard output and errors are then in out_ and err_.
  int run(const std::string& program, const std::string& arguments) {
    const std::string command =
        "cd '" + dir_.path() + "' && " + program + " " + arguments + " > .out 2> .err < /dev/null";
    const int status = std::system(command.c_str());
    out_ = dir_.read(".out");
    err_ = dir_.read(".err");
    std::filesystem::remove(dir_.file(".out"));
    std::filesystem::remove(dir_.file(".err"));
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  int pretrain(const std::string& arguments) { return run(TAPESTRY_PRETRAIN_GPT, arguments); }
  int generate(const std::string& arguments) { return run(TAPESTRY_GENERATE, arguments); }
  int preprocess(const std::string& arguments) { return run(TAPESTRY_PREPROCESS_DATA, arguments); }
  std::string said() const { return "stdout:\n" + out_ + "stderr:\n" + err_; }

  /// text_text_document, in bytes.
  void prepare_text() {
    dir_.write("text.txt", sample_text(60));
    ASSERT_EQ(preprocess("--input text.txt --output_prefix text --tokenizer_type byte"), 0)
        << said();
  }

  /// Every file and folder with its size, except what lies in `output`/log.
  std::map<std::string, uintmax_t> tree() const {
    namespace fs = std::filesystem;
    std::map<std::string, uintmax_t> found;
    for (auto entry = fs::recursive_directory_iterator(dir_.path());
         entry != fs::recursive_directory_iterator(); ++entry) {
      const std::string name = fs::relative(entry->path(), dir_.path()).string();
      if (name == "output/log") {
        entry.disable_recursion_pending();
      } else if (name != "output") {
        found[name] = entry->is_regular_file() ? entry->file_size() : 0;
      }
    }
    return found;
  }

  /// The lines of metrics.jsonl.
  std::vector<nlohmann::json> steps(const std::string& output = "output") const {
    std::istringstream lines(dir_.read(output + "/metrics.jsonl"));
    std::vector<nlohmann::json> all;
    for (std::string line; std::getline(lines, line);) {
      all.push_back(nlohmann::json::parse(line));
    }
    return all;
  }

  /// metrics.jsonl without what differs between equal runs.
  std::string metrics(const std::string& output) const {
    const std::regex changing("\"(step_time_ms|peak_bytes)\":[^,}]*|\"process\":\\{[^}]*\\}");
    return std::regex_replace(dir_.read(output + "/metrics.jsonl"), changing, "");
  }

  data::TempDir dir_;
  std::string out_;
  std::string err_;
};

}  // namespace tapestry
