// What a run shows, with a terminal and without.
#include <pty.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "tests/examples/gpt/run_program.h"

namespace tapestry {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

class TerminalTest : public ProgramTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(prepare_text());
    dir_.write("run.yaml", replaced(kTinyRun, "training_iters: 3", "training_iters: 23"));
  }

  // Everything that a shell command shows on a terminal of so many columns; status_ is its exit
  // code.
  std::string on_terminal(unsigned short columns, const std::string& command) {
    winsize size{};
    size.ws_row = 30;
    size.ws_col = columns;
    int terminal = -1;
    const pid_t child = forkpty(&terminal, nullptr, nullptr, &size);
    if (child == 0) {
      const std::string line = "cd '" + dir_.path() + "' && " + command;
      execl("/bin/sh", "sh", "-c", line.c_str(), static_cast<char*>(nullptr));
      _exit(127);
    }
    EXPECT_GT(child, 0);
    std::string shown;
    std::array<char, 4096> buffer{};
    for (;;) {
      const ssize_t count = read(terminal, buffer.data(), buffer.size());
      if (count > 0) {
        shown.append(buffer.data(), static_cast<size_t>(count));
      } else if (count == 0 || errno != EINTR) {  // EIO: the other side is closed
        break;
      }
    }
    close(terminal);
    int status = 0;
    waitpid(child, &status, 0);
    status_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    return shown;
  }
  std::string train_on_terminal(unsigned short columns, const std::string& environment = "") {
    std::filesystem::remove_all(dir_.file("output"));
    return on_terminal(
        columns, "TERM=xterm " + environment + " " TAPESTRY_PRETRAIN_GPT " --config_path run.yaml");
  }

  // The lines of progress: each begins by clearing the line that it is written over.
  static std::vector<std::string> bars(const std::string& shown) {
    std::vector<std::string> found;
    const std::string clear = "\r\033[K";
    for (size_t at = shown.find(clear); at != std::string::npos; at = shown.find(clear, at + 1)) {
      const size_t start = at + clear.size();
      const std::string line = shown.substr(start, shown.find_first_of("\r\n", start) - start);
      if (line.find(" left") != std::string::npos) {
        found.push_back(line);
      }
    }
    return found;
  }

  int status_ = 0;
};

TEST_F(TerminalTest, TheBarFitsTheTerminal) {
  for (const unsigned short columns : {60, 120}) {
    const std::string shown = train_on_terminal(columns);
    EXPECT_EQ(status_, 0) << shown;
    const std::vector<std::string> found = bars(shown);
    ASSERT_FALSE(found.empty()) << shown;
    for (const std::string& bar : found) {
      EXPECT_LT(bar.size(), columns) << bar;
    }
    EXPECT_THAT(found.back(), HasSubstr("#] 23/23  loss "));
    EXPECT_THAT(found.back(), HasSubstr(" tokens/s  0:00 left"));
  }
  for (const std::string& bar : bars(train_on_terminal(20))) {
    EXPECT_LT(bar.size(), 20U);
  }
}

// Times of day in front; rows of the summary that fit.
TEST_F(TerminalTest, TheSummaryIsWrapped) {
  const std::string shown = train_on_terminal(60);
  const size_t start = shown.rfind('\n', shown.find(" model      ")) + 1;
  const std::string summary = shown.substr(start, shown.find("\033[") - start);
  EXPECT_THAT(summary, HasSubstr(" dataset_config:"));
  std::istringstream lines(summary);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 61U) << line;  // with the carriage return
    EXPECT_TRUE(line.size() < 9 || (line[2] == ':' && line[5] == ':')) << line;
  }
}

TEST_F(TerminalTest, ColoursOnlyWhereTheyAreWanted) {
  const std::string text = dir_.read("run.yaml");
  dir_.write("run.yaml", replaced(text, "seed: 7", "eval_interval: 100"));
  EXPECT_THAT(train_on_terminal(100), HasSubstr("\033[33mwarning: \033[0mrun.yaml:3:18"));
  const std::string plain = train_on_terminal(100, "NO_COLOR=1");
  EXPECT_THAT(plain, HasSubstr(" warning: run.yaml:3:18"));
  EXPECT_THAT(plain, Not(HasSubstr("\033[33m")));
  EXPECT_FALSE(bars(plain).empty());
  EXPECT_THAT(train_on_terminal(100, "TERM=dumb"), Not(HasSubstr("\033")));
}

TEST_F(TerminalTest, FilesHoldTextAlone) {
  const std::string shown =
      on_terminal(100, "TERM=xterm " TAPESTRY_PRETRAIN_GPT " --config_path run.yaml > said.txt");
  EXPECT_EQ(status_, 0) << shown;
  EXPECT_FALSE(bars(shown).empty()) << shown;  // on standard error
  for (const char* file :
       {"said.txt", "output/log/rank_0/info.log", "output/metrics.jsonl", "output/config.yaml"}) {
    EXPECT_THAT(dir_.read(file), Not(HasSubstr("\033"))) << file;
    EXPECT_NE(dir_.read(file), "");
  }
  EXPECT_THAT(dir_.read("said.txt"), HasSubstr(" info train: Epoch:0, Step:10, "));
}

TEST_F(TerminalTest, TheSummaryHasTheTenLines) {
  ASSERT_EQ(pretrain("--config_path run.yaml --set optimizer_config.clip_grad=1"), 0) << said();
  EXPECT_THAT(out_, Not(HasSubstr("\033")));
  EXPECT_EQ(err_, "");
  size_t at = 0;
  for (const char* row :
       {" info model      6,672 parameters: 1 layers of width 16 (MLP 32, 2 heads), vocabulary 260",
        " info data       text_text_document: 1 document, ",
        " tokens\n",
        " info tokenizer  byte tokenizer, 257 ids\n",
        " info layout     dp 1 | pp 1 | tp 1 | sp False | vpp None\n",
        " info machine    1 thread, ",
        " info precision  computes in float32; parameters float32, ",
        " info memory     about ",
        " needed, ",
        " available\n",
        " info length     23 steps, 32 tokens a step, 736 in all\n",
        " info files      in ./output: log/rank_0/info.log, metrics.jsonl, config.yaml",
        " info changed    training_config: seed=7, training_iters=23, num_threads=1\n",
        " info            dataset_config: ",
        " info            optimizer_config: clip_grad=1.0\n",
        " info time       ",
        " ms a step, 0:00 for 23 steps, as measured on steps 2 and 3\n",
        " info train: Epoch:0, Step:10, ",
        " info train: Epoch:0, Step:20, ",
        " info train: Epoch:0, Step:23, "}) {
    const size_t next = out_.find(row, at);
    EXPECT_NE(next, std::string::npos) << "no '" << row << "' behind\n" << out_.substr(at);
    at = next == std::string::npos ? at : next;
  }
  EXPECT_THAT(out_, Not(HasSubstr("max_position_embeddings")));  // the whole is in the log
  EXPECT_THAT(dir_.read("output/log/rank_0/info.log"),
              HasSubstr("    max_position_embeddings: 16"));
}

// log_interval is 10 where nobody says otherwise; the mean is that of the steps since the last
// line.
TEST_F(TerminalTest, TrainLinesHaveRateMeanAndRemainingTime) {
  ASSERT_EQ(pretrain("--config_path run.yaml"), 0) << said();
  std::vector<double> losses;
  std::istringstream metrics(dir_.read("output/metrics.jsonl"));
  for (std::string line; std::getline(metrics, line);) {
    losses.push_back(std::stod(line.substr(line.find("\"loss\":") + 7)));
  }
  ASSERT_EQ(losses.size(), 23U);
  const std::regex line(
      R"(Step:(\d+), .*, Time: [\d.]+ ms, Tokens/s: \d+, Mean_loss: ([\d.]+), Remaining: \d+:\d\d\n)");
  std::vector<std::pair<size_t, double>> means;
  for (std::sregex_iterator found(out_.begin(), out_.end(), line), end; found != end; ++found) {
    means.emplace_back(std::stoul((*found)[1]), std::stod((*found)[2]));
  }
  ASSERT_EQ(means.size(), 3U) << out_;
  size_t from = 0;
  for (const auto& [step, mean] : means) {
    double sum = 0;
    for (size_t i = from; i < step; ++i) {
      sum += losses[i];
    }
    EXPECT_NEAR(mean, sum / static_cast<double>(step - from), 1e-6) << step;
    from = step;
  }
  EXPECT_EQ(from, 23U);
}

TEST_F(TerminalTest, WithoutAnIntervalNoTrainLines) {
  ASSERT_EQ(pretrain("--config_path run.yaml --set training_config.log_interval=null"), 0);
  EXPECT_THAT(out_, Not(HasSubstr("train: ")));
}

}  // namespace
}  // namespace tapestry
