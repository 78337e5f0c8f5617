// pretrain_gpt --plot, on runs of the program itself.
#include <pty.h>
#include <unistd.h>

#include <cstdint>
#include <sstream>

#include "autograd/io/json.h"
#include "tests/diagnosis/report/plot/svg_reader.h"
#include "tests/examples/gpt/run_program.h"
#include "tests/says.h"

namespace tapestry {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

class PlotTest : public ProgramTest {
 protected:
  // Twelve steps with three evaluations.
  void train(const std::string& output, const std::string& learning_rate) {
    if (dir_.read("run.yaml").empty()) {
      prepare_text();
      dir_.write("run.yaml", replaced(replaced(kTinyRun, "training_iters: 3", "training_iters: 12"),
                                      "  seed: 7\n", "  seed: 7\n  eval_interval: 4\n"));
    }
    ASSERT_EQ(pretrain("--config_path run.yaml --set training_config.output_dir=" + output +
                       " --set optimizer_config.learning_rate=" + learning_rate),
              0)
        << said();
  }
  // The program at a terminal of so many columns, under `environment`.
  std::string at_terminal(const std::vector<std::string>& environment,
                          const std::vector<std::string>& words,
                          uint16_t columns) {
    std::vector<std::string> all = {"env"};
    all.insert(all.end(), environment.begin(), environment.end());
    all.emplace_back(TAPESTRY_PRETRAIN_GPT);
    all.insert(all.end(), words.begin(), words.end());
    std::vector<char*> arguments;
    arguments.reserve(all.size() + 1);
    for (std::string& word : all) {
      arguments.push_back(word.data());
    }
    arguments.push_back(nullptr);
    winsize size{.ws_row = 24, .ws_col = columns};
    int terminal = -1;
    const pid_t child = ::forkpty(&terminal, nullptr, nullptr, &size);
    if (child == 0) {
      if (::chdir(dir_.path().c_str()) == 0) {
        ::execvp(arguments[0], arguments.data());
      }
      ::_exit(127);
    }
    EXPECT_GE(child, 0);
    std::string shown;
    char buffer[4096];
    for (ssize_t got = 0; (got = ::read(terminal, buffer, sizeof(buffer))) > 0;) {
      shown.append(buffer, static_cast<size_t>(got));
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    ::close(terminal);
    EXPECT_EQ(status, 0) << shown;
    return std::regex_replace(shown, std::regex("\r\n"), "\n");
  }
};

TEST_F(PlotTest, ThePictureShowsTheNumbersOfTheRuns) {
  ASSERT_NO_FATAL_FAILURE(train("runs/fast", "1e-2"));
  ASSERT_NO_FATAL_FAILURE(train("runs/slow", "1e-4"));
  for (const std::string x : {"steps", "tokens"}) {
    ASSERT_EQ(pretrain("--plot runs/fast runs/slow/metrics.jsonl --out losses.svg --x " + x), 0)
        << said();
    EXPECT_EQ(out_, "wrote losses.svg: 4 curves of 2 runs\n");
    EXPECT_EQ(err_, "");
    const plot::SvgPlot picture = plot::read_svg(dir_.read("losses.svg"));
    ASSERT_EQ(picture.curves.size(), 4U);
    for (size_t i = 0; i < 4; ++i) {
      const bool validation = i >= 2;
      const std::string name = i % 2 == 0 ? "fast" : "slow";
      const plot::SvgCurve& curve = picture.curves[i];
      EXPECT_EQ(curve.title, name + (validation ? ", validation" : ", training"));
      std::vector<plot::Point> expected;
      double tokens = 0;
      for (const Json& step : steps("runs/" + name)) {
        tokens += step.at("tokens").get<double>();
        if (!validation || step.contains("eval_loss")) {
          expected.push_back({x == "tokens" ? tokens : step.at("step").get<double>(),
                              step.at(validation ? "eval_loss" : "loss").get<double>()});
        }
      }
      ASSERT_EQ(expected.size(), validation ? 3U : 12U);
      ASSERT_EQ(curve.lines.size(), 1U);
      ASSERT_EQ(curve.lines[0].size(), expected.size());
      for (size_t k = 0; k < expected.size(); ++k) {
        EXPECT_NEAR(curve.lines[0][k].x, expected[k].x, picture.x_rounding);
        EXPECT_NEAR(curve.lines[0][k].y, expected[k].y, picture.y_rounding);
      }
    }
  }
}

TEST_F(PlotTest, AFileHasTextOfTheWidthThatIsAskedFor) {
  ASSERT_NO_FATAL_FAILURE(train("output", "1e-2"));
  ASSERT_EQ(
      run("LC_ALL=C COLUMNS=50 " TAPESTRY_PRETRAIN_GPT, "--plot output --x time --smooth 0.5"), 0)
      << said();
  EXPECT_THAT(out_, HasSubstr("time of the steps (s)\na output, training (smoothed): last "));
  EXPECT_THAT(out_, HasSubstr("\nA output, validation: last "));
  std::istringstream lines(out_);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 50U) << line;
  }
  EXPECT_TRUE(std::all_of(out_.begin(), out_.end(), [](char c) {
    return c == '\n' || (c >= ' ' && c <= '~');
  })) << out_;
  ASSERT_EQ(run("LC_ALL=C.UTF-8 TERM=xterm " TAPESTRY_PRETRAIN_GPT, "--plot output"), 0) << said();
  EXPECT_THAT(out_, HasSubstr("┤"));
  EXPECT_THAT(out_, Not(HasSubstr("\x1b")));
}

TEST_F(PlotTest, ATerminalHasColorsInItsWidth) {
  if (::access("/dev/pts/ptmx", F_OK) != 0) {
    GTEST_SKIP() << "this machine has no pseudo-terminals";
  }
  ASSERT_NO_FATAL_FAILURE(train("output", "1e-2"));
  const std::vector<std::string> usual = {"-u", "NO_COLOR", "LC_ALL=C", "TERM=xterm"};
  for (const uint16_t columns : {60, 120}) {
    const std::string colors = at_terminal(usual, {"--plot", "output"}, columns);
    EXPECT_THAT(colors, HasSubstr("\x1b[94ma"));
    const std::string plain =
        at_terminal({"NO_COLOR=1", "LC_ALL=C", "TERM=xterm"}, {"--plot", "output"}, columns);
    EXPECT_EQ(plain, std::regex_replace(colors, std::regex("\x1b\\[[0-9]+m"), ""));
    size_t widest = 0;
    std::istringstream lines(plain);
    for (std::string line; std::getline(lines, line);) {
      widest = std::max(widest, line.size());
    }
    EXPECT_EQ(widest, columns) << plain;
  }
}

TEST_F(PlotTest, LossesThatAreNotFiniteAreNoted) {
  const std::string rest = ",\"tokens\":8,\"step_time_ms\":1}\n";
  dir_.write("r/metrics.jsonl", "{\"step\":1,\"loss\":2.5" + rest + "{\"step\":2,\"loss\":\"nan\"" +
                                    rest + "{\"step\":3,\"loss\":2.25" + rest);
  ASSERT_EQ(pretrain("--plot r"), 0) << said();
  EXPECT_THAT(out_, HasSubstr("a r, training: last 2.2500\n"
                              "note: r: 1 of 3 training losses is not finite: a gap\n"));
  ASSERT_EQ(pretrain("--plot r --out r.svg"), 0) << said();
  EXPECT_THAT(out_, Says("note: ... 1 ... 3 ... losses is not finite: a ... gap\n"));
  EXPECT_THAT(dir_.read("r.svg"), Says("1 ... 3 ... losses is not finite: a ... gap</text>"));
}

TEST_F(PlotTest, WrongRequestsEndWithTwoAndWriteNothing) {
  dir_.write("run.yaml", kTinyRun);
  const std::string line = "{\"step\":1,\"loss\":2.5,\"tokens\":8,\"step_time_ms\":1}\n";
  dir_.write("r/metrics.jsonl", line);
  dir_.write("diverged/metrics.jsonl", replaced(line, "2.5", "\"inf\""));
  dir_.write("empty/metrics.jsonl", "");
  dir_.write("folder/notes.txt", "");
  const auto before = tree();
  const auto refuses = [&](const std::string& words, const std::string& message) {
    EXPECT_EQ(pretrain(words), 2) << words << "\n" << said();
    EXPECT_THAT(err_, Says(message)) << words;
    EXPECT_EQ(std::count(err_.begin(), err_.end(), '\n'), 1) << err_;
    EXPECT_EQ(out_, "");
    EXPECT_EQ(tree(), before);
  };
  refuses("--plot", "--plot: ... missing behind it");
  refuses("--plot nowhere --out a.svg", "nowhere: ... no such file or folder");
  refuses("--plot r empty --out a.svg", "empty/metrics.jsonl: is empty; the run has not finished");
  refuses("--plot folder", "folder: ... metrics.jsonl; ... output folder of a run");
  refuses("--plot .", ".: has no metrics.jsonl; did you mean ./diverged, ./empty, ./r?");
  refuses("--plot run.yaml", "run.yaml:1: is not JSON; expected a line of metrics.jsonl");
  refuses("--plot diverged", "diverged has no finite loss");
  refuses("--plot r r/", "r/: is given twice");
  refuses("--plot r --x hours", "--x ... 'hours'; ... steps, tokens or time");
  refuses("--plot r --smooth 1", "--smooth ... 1; ... expected a number from ... 0 ... 1");
  refuses("--plot r --smooth much", "expected a number");
  refuses("--plot r --out a.png", "--out ... 'a.png'; ... name that ends in ... .svg");
  refuses("--plot r --out nowhere/a.svg", "nowhere/a.svg");
  refuses("--plot r --config_path run.yaml", "--config_path means nothing to --plot");
  refuses("--plot r --dry_run", "--dry_run means nothing to --plot");
  refuses("--config_path run.yaml --out a.svg", "--out belongs to --plot RUN...");
  refuses("--config_path run.yaml --x steps", "--x belongs to --plot RUN...");
}

}  // namespace
}  // namespace tapestry
