// What a run shows, with a terminal and without.
#include <pty.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): SIGINT
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <functional>
#include <set>
#include <sstream>
#include <thread>

#include "autograd/tensor/error.h"
#include "tests/examples/gpt/run_program.h"
#include "tests/says.h"

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

  // Called with a terminal and what it has shown, whenever that becomes more.
  using Watcher = std::function<void(int terminal, const std::string& shown)>;

  // Everything that a shell command shows on a terminal of so many columns; status_ is its exit
  // code.
  std::string on_terminal(unsigned short columns,
                          const std::string& command,
                          const Watcher& watcher = {}) {
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
        if (watcher) {
          watcher(terminal, shown);
        }
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
      const bool is_step = line.find(" | ") != std::string::npos;  // which stays
      if (line.find(" left") != std::string::npos && !is_step) {
        found.push_back(line);
      }
    }
    return found;
  }

  // What a terminal shows in the end: without colours, and without what was written over.
  static std::string text_of(const std::string& shown) {
    const std::regex escapes("\r\033\\[K[^\r\n]*(?=\r\033)|\033\\[[0-9;]*[A-Za-z]|\r");
    return std::regex_replace(shown, escapes, "");
  }

  static std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) {
      lines.push_back(line);
    }
    return lines;
  }

  static std::string words_of(const std::string& text) {
    std::string all;
    std::istringstream words(text);
    for (std::string word; words >> word;) {
      all += word + " ";
    }
    return all;
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
      EXPECT_LE(bar.size() + 3, columns) << bar;  // room for "^C"
    }
    EXPECT_THAT(found.back(), HasSubstr("#] 23/23  loss "));
    EXPECT_THAT(found.back(), HasSubstr(" tokens/s  0:00 left"));
  }
  for (const std::string& bar : bars(train_on_terminal(20))) {
    EXPECT_LT(bar.size(), 20U);
  }
}

// Every line fits and begins with the time of day, or goes on below the text; put together they are
// lines of the log, which are whole.
TEST_F(TerminalTest, LinesAreWrapped) {
  const std::regex date("^[-0-9]+ [0-9:.]+ (info|warning) ");
  for (const unsigned short columns : {60, 120}) {
    std::vector<std::string> messages;
    for (const std::string& line : lines_of(text_of(train_on_terminal(columns)))) {
      EXPECT_LE(line.size(), columns) << line;
      if (line.starts_with("         ")) {
        ASSERT_FALSE(messages.empty());
        messages.back() += line;
      } else {
        EXPECT_TRUE(line[2] == ':' && line[5] == ':' && line[8] == ' ') << line;
        messages.push_back(line.substr(9));
      }
    }
    std::set<std::string> logged;
    for (const std::string& line : lines_of(dir_.read("output/log/rank_0/info.log"))) {
      logged.insert(words_of(std::regex_replace(line, date, "")));
    }
    EXPECT_GT(messages.size(), 15U);
    for (const std::string& message : messages) {  // of steps a terminal has a form of its own
      EXPECT_TRUE(message.starts_with("step ") || logged.contains(words_of(message))) << message;
    }
  }
  EXPECT_THAT(on_terminal(60, "TERM=xterm " TAPESTRY_PRETRAIN_GPT " --config_path run.yaml"),
              HasSubstr("\r\n  "));  // the folder has a run
  EXPECT_EQ(status_, 2);
}

TEST_F(TerminalTest, PagesFit) {
  for (const char* command : {TAPESTRY_PRETRAIN_GPT " --help", TAPESTRY_PRETRAIN_GPT " --version",
                              TAPESTRY_PRETRAIN_GPT " --help parallel_config",
                              TAPESTRY_PRETRAIN_GPT " --config_path run.yaml --dry_run",
                              TAPESTRY_GENERATE " --help", TAPESTRY_PREPROCESS_DATA " -h"}) {
    const std::string shown = on_terminal(60, std::string("TERM=xterm ") + command);
    EXPECT_EQ(status_, 0) << command;
    for (const std::string& line : lines_of(text_of(shown))) {
      EXPECT_LE(line.size(), 60U) << command << ": " << line;
    }
  }
  ASSERT_EQ(pretrain("--help"), 0);
  EXPECT_THAT(out_,
              HasSubstr("\n  --evaluate DIR                    print validation and test loss of a "
                        "checkpoint, or of many\n"));
}

// The terminal breaks a bar that has become too wide: all of it goes.
TEST_F(TerminalTest, TheBarFollowsTheTerminal) {
  std::filesystem::remove_all(dir_.file("output"));
  bool narrowed = false;
  const std::string shown =
      on_terminal(120,
                  "TERM=xterm exec " TAPESTRY_PRETRAIN_GPT
                  " --config_path run.yaml --set training_config.training_iters=400 --set "
                  "training_config.log_interval=null --set dataset_config.batch_size=64",
                  [&](int terminal, const std::string& text) {
                    if (!narrowed && text.ends_with(" left")) {
                      winsize size{};
                      size.ws_row = 30;
                      size.ws_col = 40;
                      ioctl(terminal, TIOCSWINSZ, &size);
                      narrowed = true;
                    }
                  });
  EXPECT_EQ(status_, 0) << shown;
  const size_t cleared = shown.find("\033[2A\r\033[J");  // 80 columns or more in lines of 40
  ASSERT_NE(cleared, std::string::npos) << shown;
  EXPECT_EQ(shown.find("\033[2A", cleared + 1), std::string::npos);
  const std::vector<std::string> after = bars(shown.substr(cleared));
  ASSERT_FALSE(after.empty());
  for (const std::string& bar : after) {
    EXPECT_LE(bar.size(), 37U) << bar;
  }
}

// In the background somebody else types on the terminal.
TEST_F(TerminalTest, NoBarInTheBackground) {
  const std::string shown =
      on_terminal(100, "TERM=xterm exec bash -c 'set -m; " TAPESTRY_PRETRAIN_GPT
                       " --config_path run.yaml & wait $!'");
  EXPECT_EQ(status_, 0) << shown;
  EXPECT_TRUE(bars(shown).empty()) << shown;
  EXPECT_THAT(shown, HasSubstr(" step 20/23 | loss "));
}

TEST_F(TerminalTest, InterruptedOnceItSavesAndSaysSo) {
  bool interrupted = false;
  const std::string shown =
      on_terminal(60,
                  "TERM=xterm exec " TAPESTRY_PRETRAIN_GPT
                  " --config_path run.yaml --set training_config.training_iters=200000",
                  [&](int terminal, const std::string& text) {
                    if (!interrupted && text.ends_with(" left")) {
                      interrupted = write(terminal, "\x03", 1) == 1;
                    }
                  });
  EXPECT_EQ(status_, 0) << shown;
  const size_t notice = shown.find("stopping after this step; a second signal ends at once\r\n");
  ASSERT_NE(notice, std::string::npos) << shown;
  const std::string end = text_of(shown.substr(notice));
  EXPECT_THAT(end, HasSubstr(" saved ./output/checkpoint/step_"));
  EXPECT_THAT(end, Says("on request after ... step"));
  EXPECT_THAT(std::regex_replace(end, std::regex("\\s+"), " "),
              HasSubstr("; to go on: pretrain_gpt --resume ./output"));
}

// The form that log readers know is longer than a terminal's line.
TEST_F(TerminalTest, AStepIsALineOfEightyColumns) {
  const std::string shown = train_on_terminal(80);
  EXPECT_EQ(status_, 0) << shown;
  EXPECT_THAT(shown, Not(HasSubstr("train: Epoch")));
  std::smatch found;
  const std::string text = text_of(shown);
  for (const char* step : {"10", "20", "23"}) {
    ASSERT_TRUE(std::regex_search(
        text, found,
        std::regex(concat("\\d\\d:\\d\\d:\\d\\d step ", step,
                          "/23 \\| loss [0-9.]+ \\| lr 0\\.001 \\| [0-9.]+ ms \\| "
                          "\\d+:\\d\\d left( \\| \\d+ tok/s)?"))))
        << text;
    EXPECT_LE(found.str().size(), 80U);
    EXPECT_THAT(dir_.read("output/log/rank_0/info.log"),
                Says(concat(" info train: Epoch:0, Step:", step, ", Loss: ")));
  }
  // Everywhere else the line is that of the log.
  std::filesystem::remove_all(dir_.file("output"));
  ASSERT_EQ(pretrain("--config_path run.yaml"), 0) << said();
  EXPECT_THAT(out_, HasSubstr(" info train: Epoch:0, Step:23, Loss: "));
  EXPECT_THAT(out_, Not(HasSubstr("step 23/23 |")));
}

TEST_F(TerminalTest, InterruptedTwiceItEndsAtOnce) {
  int interrupts = 0;
  const std::string shown = on_terminal(
      60,
      // Steps that take their time.
      "TERM=xterm exec " TAPESTRY_PRETRAIN_GPT
      " --config_path run.yaml --set training_config.training_iters=50 --set "
      "dataset_config.batch_size=20000",
      [&](int terminal, const std::string& text) {
        const bool trains = interrupts == 0 && text.ends_with(" left");
        if (trains) {  // let the next step begin
          std::this_thread::sleep_for(std::chrono::milliseconds(300));
        }
        if (trains || (interrupts == 1 && text.ends_with("a second signal ends at once\r\n"))) {
          interrupts += write(terminal, "\x03", 1) == 1 ? 1 : 0;
        }
      });
  EXPECT_EQ(status_, -SIGINT) << shown;
  EXPECT_FALSE(std::filesystem::exists(dir_.file("output/checkpoint")));
}

// The terminal goes, or who reads the output: the run ends in good order and saves.
TEST_F(TerminalTest, SavesWhenNobodyIsThereAnyMore) {
  const std::string program = TAPESTRY_PRETRAIN_GPT
      " --config_path run.yaml --overwrite --set training_config.training_iters=";
  const std::string until_it_trains = "until [ -s output/metrics.jsonl ]; do sleep 0.05; done; ";
  for (const std::string& ending :
       {"sh -c '" + program + "200000 | head -n 1'",
        "sh -c '" + program + "200000 & " + until_it_trains + "kill -HUP $!; wait $!'"}) {
    EXPECT_EQ(run(ending, ""), 0) << ending << said();
    EXPECT_THAT(dir_.read("output/log/rank_0/info.log"),
                Says("stopped on request after ... steps"));
    EXPECT_FALSE(std::filesystem::is_empty(dir_.file("output/checkpoint")));
    EXPECT_FALSE(std::filesystem::exists(dir_.file("output/run.lock")));
    std::filesystem::remove_all(dir_.file("output"));
  }
  // nohup's way: the run is told to ignore it.
  EXPECT_EQ(run("sh -c 'trap \"\" HUP; " + program + "2000 & " + until_it_trains +
                    "kill -HUP $!; wait $!'",
                ""),
            0)
      << said();
  EXPECT_THAT(out_, HasSubstr(" finished after 2000 steps"));
}

TEST_F(TerminalTest, WhatWasAskedForAndCannotBeWrittenIsAnError) {
  for (const char* arguments : {"--version", "--help", "--config_path run.yaml --dry_run"}) {
    EXPECT_EQ(run(concat("sh -c '" TAPESTRY_PRETRAIN_GPT " ", arguments, " > /dev/full'"), ""), 1)
        << arguments;
    EXPECT_EQ(err_, "pretrain_gpt: standard output: cannot write: No space left on device\n");
  }
}

// The files of a run do not become its standard output.
TEST_F(TerminalTest, AClosedOutputGoesNowhere) {
  ASSERT_EQ(run("sh -c '" TAPESTRY_PRETRAIN_GPT
                " --config_path run.yaml --set training_config.training_iters=200000 >&- & "
                "until [ -s output/metrics.jsonl ]; do sleep 0.05; done; kill -KILL $!; wait $!; "
                "cat output/run.lock'",
                ""),
            0)
      << said();
  EXPECT_THAT(out_, HasSubstr("\npid: "));
  EXPECT_THAT(out_, Not(HasSubstr("checkpoints: ")));
}

TEST_F(TerminalTest, NoRoomForTheLockIsAFullDisk) {
  ASSERT_EQ(run("sh -c '(ulimit -f 0; " TAPESTRY_PRETRAIN_GPT
                " --config_path run.yaml 2>&1; echo exit code $?) | cat'",
                ""),
            0);
  EXPECT_THAT(out_, HasSubstr("output/run.lock: cannot write: File too large"));
  EXPECT_THAT(out_, HasSubstr("exit code 1\n"));
}

// What a model makes up must not do anything to a terminal.
TEST_F(TerminalTest, GeneratedBytesAreHarmless) {
  ASSERT_EQ(pretrain("--config_path run.yaml --set training_config.training_iters=1"), 0) << said();
  const std::string arguments =
      " --checkpoint output --prompt And --max_new_tokens 400 --temperature 3";
  ASSERT_EQ(generate(arguments), 0) << said();
  const auto controls = [](const std::string& text) {
    return std::count_if(text.begin(), text.end(), [](unsigned char c) {
      return c < ' ' && c != '\n' && c != '\t' && c != '\r';
    });
  };
  EXPECT_GT(controls(out_), 0);
  const std::string shown = on_terminal(100, "TERM=xterm " TAPESTRY_GENERATE + arguments);
  EXPECT_THAT(shown, HasSubstr("And"));
  EXPECT_EQ(controls(shown), 0) << shown;
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
        "info files      in ./output: log/rank_0/info.log, metrics.jsonl, config.yaml",
        " info changed    training_config: seed=7, training_iters=23, num_threads=1\n",
        " info            dataset_config: ",
        " info            optimizer_config: clip_grad=1.0\n",
        " info time       ",  // steps are too short to be estimated
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

// Where steps take long there is an estimate before the first one.
TEST_F(TerminalTest, TheTimeIsExpectedBeforeItIsMeasured) {
  ASSERT_EQ(pretrain("--config_path run.yaml --set training_config.training_iters=3 --set "
                     "dataset_config.batch_size=5000"),
            0)
      << said();
  EXPECT_THAT(
      out_, ::testing::ContainsRegex(" info time       about [0-9.]+ m?s a step, [0-9:]+ for 3 "
                                     "steps, estimated; the measured time follows after step 3\n"
                                     "(.*\n)+.* info time       [0-9.]+ m?s a step, [0-9:]+ for 3 "
                                     "steps, as measured on steps 2 and 3\n"));
}

TEST_F(TerminalTest, WithoutAnIntervalNoTrainLines) {
  ASSERT_EQ(pretrain("--config_path run.yaml --set training_config.log_interval=null"), 0);
  EXPECT_THAT(out_, Not(HasSubstr("train: ")));
}

}  // namespace
}  // namespace tapestry
