// pretrain_gpt --plot, on runs of the program itself.
#include <algorithm>

#include "autograd/io/json.h"
#include "tests/diagnosis/report/svg_reader.h"
#include "tests/examples/gpt/run_program.h"
#include "tests/says.h"

namespace tapestry {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

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
};

TEST_F(PlotTest, ThePictureShowsTheNumbersOfTheRuns) {
  ASSERT_NO_FATAL_FAILURE(train("runs/fast", "1e-2"));
  ASSERT_NO_FATAL_FAILURE(train("runs/slow", "1e-4"));
  for (const std::string x : {"steps", "tokens"}) {
    ASSERT_EQ(pretrain("--plot runs/fast runs/slow/metrics.jsonl --out losses.svg --x " + x), 0)
        << said();
    EXPECT_EQ(out_, "wrote losses.svg: 4 curves of 2 runs\n");
    EXPECT_EQ(err_, "");
    const report::SvgPlot picture = report::read_svg(dir_.read("losses.svg"));
    ASSERT_EQ(picture.curves.size(), 4U);
    for (size_t i = 0; i < 4; ++i) {
      const bool validation = i >= 2;
      const std::string name = i % 2 == 0 ? "fast" : "slow";
      const report::SvgCurve& curve = picture.curves[i];
      EXPECT_EQ(curve.title, name + (validation ? ", evaluation" : ", training"));
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

TEST_F(PlotTest, WithoutAFileThereIsATable) {
  ASSERT_NO_FATAL_FAILURE(train("output", "1e-2"));
  ASSERT_EQ(pretrain("--plot output --x time --smooth 0.5"), 0) << said();
  EXPECT_THAT(out_, HasSubstr("loss per token"));
  EXPECT_THAT(out_, HasSubstr("at (seconds of steps)\ntraining, smoothed "));
  EXPECT_THAT(out_, HasSubstr("\nevaluation "));
  EXPECT_TRUE(std::all_of(out_.begin(), out_.end(), [](char c) {
    return c == '\n' || (c >= ' ' && c <= '~');
  })) << out_;
}

TEST_F(PlotTest, LossesThatAreNotFiniteAreNoted) {
  const std::string rest = ",\"tokens\":8,\"step_time_ms\":1}\n";
  dir_.write("r/metrics.jsonl", "{\"step\":1,\"loss\":2.5" + rest + "{\"step\":2,\"loss\":\"nan\"" +
                                    rest + "{\"step\":3,\"loss\":2.25" + rest);
  ASSERT_EQ(pretrain("--plot r"), 0) << said();
  EXPECT_THAT(out_, HasSubstr("training          2.5  2.25    2.25           3\n"
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
  refuses("--plot r empty --out a.svg", "empty/metrics.jsonl: is empty");
  refuses("--plot folder", "folder: ... metrics.jsonl; ... output folder of a run");
  refuses("--plot .", ".: has no metrics.jsonl; did you mean ./diverged, ./empty, ./r?");
  refuses("--plot run.yaml", "run.yaml:1: is not JSON; ... metrics.jsonl");
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
