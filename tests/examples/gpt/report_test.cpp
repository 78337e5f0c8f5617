// pretrain_gpt --report and --plot_schedule, on runs of the program itself.
#include <cmath>
#include <cstdint>

#include "autograd/io/json.h"
#include "tests/diagnosis/report/html_reader.h"
#include "tests/diagnosis/report/svg_reader.h"
#include "tests/examples/gpt/run_program.h"
#include "tests/says.h"

namespace tapestry {
namespace {

using report::ChartLine;
using report::part_between;
using report::read_chart;
using ::testing::HasSubstr;
using ::testing::Not;

class ReportTest : public ProgramTest {
 protected:
  void train(const std::string& output, const std::string& learning_rate) {
    if (dir_.read("run.yaml").empty()) {
      prepare_text();
      dir_.write(
          "run.yaml",
          replaced(replaced(kTinyRun, "training_iters: 3", "training_iters: 8"), "  seed: 7\n",
                   "  seed: 7\n  eval_interval: 4\n  log_param_grad_norms: True\n"));
    }
    ASSERT_EQ(pretrain("--config_path run.yaml --set training_config.output_dir=" + output +
                       " --set optimizer_config.learning_rate=" + learning_rate),
              0)
        << said();
  }
  void refuses(const std::string& arguments, const std::string& text) {
    EXPECT_EQ(pretrain(arguments), 2) << arguments;
    EXPECT_THAT(err_, Says(text)) << arguments;
  }
};

TEST_F(ReportTest, ThePageShowsTheNumbersOfTheRuns) {
  ASSERT_NO_FATAL_FAILURE(train("runs/fast", "1e-2"));
  ASSERT_NO_FATAL_FAILURE(train("runs/slow", "1e-4"));
  ASSERT_EQ(pretrain("--report runs/fast runs/slow"), 0) << said();
  EXPECT_THAT(out_, HasSubstr("wrote runs/fast/report.html: 2 runs, "));
  EXPECT_EQ(err_, "");
  const std::string page = dir_.read("runs/fast/report.html");
  report::expect_well_formed(page);
  const std::vector<ChartLine> lines = read_chart(page, "Loss");
  ASSERT_EQ(lines.size(), 4U);
  for (size_t i = 0; i < 4; ++i) {
    const bool evaluation = i >= 2;
    const std::string name = i % 2 == 0 ? "fast" : "slow";
    EXPECT_EQ(lines[i].label, name + (evaluation ? ", evaluation" : ", training"));
    plot::Points expected;
    for (const nlohmann::json& step : steps("runs/" + name)) {
      if (!evaluation || step.contains("eval_loss")) {
        expected.push_back(
            {step.at("step").get<double>(), step.at(evaluation ? "eval_loss" : "loss")});
      }
    }
    ASSERT_EQ(lines[i].points.size(), expected.size());
    for (size_t k = 0; k < expected.size(); ++k) {
      EXPECT_EQ(lines[i].points[k].x, expected[k].x);
      EXPECT_NEAR(lines[i].points[k].y, expected[k].y, 1e-3);
    }
  }
  const std::string differences =
      part_between(page, "<h2>Configuration: differences</h2>", "<details>");
  EXPECT_THAT(differences,
              HasSubstr("learning_rate</th><td>0.01</td><td class=\"own\">1e-04</td>"));
  EXPECT_THAT(differences, HasSubstr("output_dir"));
  EXPECT_THAT(differences, Not(HasSubstr("hidden_size")));
  EXPECT_THAT(page, HasSubstr("grad_norms</span>, "));
  EXPECT_THAT(page, Says("updated the weights."));
}

TEST_F(ReportTest, OfOneRunItLiesInItsFolderUnlessToldOtherwise) {
  ASSERT_NO_FATAL_FAILURE(train("output", "1e-2"));
  ASSERT_EQ(pretrain("--report output/metrics.jsonl"), 0) << said();
  const std::string page = dir_.read("output/report.html");
  EXPECT_THAT(page, HasSubstr("<dt>Steps</dt><dd>8<small>of 8</small>"));
  EXPECT_THAT(page, HasSubstr("<tr><th scope=\"row\">learning_rate</th><td>0.01</td>"
                              "<td class=\"soft\">--set</td></tr>"));
  ASSERT_EQ(pretrain("--report output --out there.html --x tokens --smooth 0.5"), 0) << said();
  EXPECT_THAT(out_, HasSubstr("wrote there.html: 1 run, "));
  const std::vector<ChartLine> lines = read_chart(dir_.read("there.html"), "Loss");
  EXPECT_EQ(lines[0].kind, "faint");
  EXPECT_EQ(lines[0].points[0].x, steps()[0].at("tokens").get<double>());
  // A run that starts anew leaves no page of the earlier one behind.
  ASSERT_EQ(pretrain("--config_path run.yaml --overwrite"), 0) << said();
  EXPECT_FALSE(std::filesystem::exists(dir_.file("output/report.html")));
  EXPECT_TRUE(std::filesystem::exists(dir_.file("output/old/run_1/report.html")));
}

TEST_F(ReportTest, StepsWithoutAnUpdateAreShown) {
  ASSERT_NO_FATAL_FAILURE(train("output", "1e-2"));
  dir_.write(
      "output/metrics.jsonl",
      std::regex_replace(dir_.read("output/metrics.jsonl"),
                         std::regex("(\"step\":5,.*)\"finite\":true"), "$1\"finite\":false"));
  dir_.write("output/health_ckpts.json", R"([{"is_health": 1, "ckpt_name": "step_00000008"}])");
  ASSERT_EQ(pretrain("--report output"), 0) << said();
  const std::string page = dir_.read("output/report.html");
  EXPECT_THAT(page, Says("1 ... gradients were not ... finite</span>: 5."));
  EXPECT_THAT(page, HasSubstr("step_00000008</td><td class=\"bad\">unhealthy"));
}

TEST_F(ReportTest, WrongWordsAreRefused) {
  dir_.write("r/metrics.jsonl",
             "{\"step\":1,\"loss\":2.5,\"tokens\":8,\"step_time_ms\":1,\"finite\":true}\n");
  dir_.write("run.yaml", kTinyRun);
  refuses("--report r --plot r", "--plot ... --report ... exclude each other");
  refuses("--report r --config_path run.yaml", "--config_path means nothing to --report");
  refuses("--report r --out a.svg", "name that ends in ... .html");
  refuses("--report r --out ''", "--out ... expected the name of an ... HTML");
  refuses("--report r --x hours", "--x ... 'hours'; ... steps, tokens or time");
  refuses("--report r --smooth 1", "--smooth ... 1; ... expected a number from ... 0 ... 1");
  refuses("--report nowhere", "nowhere: ... no such file or folder");
  refuses("--report r r", "r: is given twice");
  refuses("--config_path run.yaml --plot_schedule a.png", "name that ends in ... .svg");
  refuses("--config_path run.yaml --plot_schedule a.svg --dry_run",
          "--plot_schedule and --dry_run exclude each other");
  refuses("--plot_schedule a.svg", "--config_path FILE ... is needed");
  EXPECT_FALSE(std::filesystem::exists(dir_.file("r/report.html")));
  ASSERT_EQ(pretrain("--report r"), 0) << said();
  EXPECT_THAT(out_, HasSubstr("note: r: there is no config.yaml"));
}

TEST_F(ReportTest, TheScheduleIsTheOneThatTrains) {
  prepare_text();
  dir_.write("run.yaml",
             replaced(replaced(kTinyRun, "training_iters: 3", "training_iters: 12"),
                      "  learning_rate: 1e-3\n",
                      "  learning_rate: 1e-3\n  min_lr: 1e-4\n  lr_decay_style: cosine\n"
                      "  lr_warmup_iters: 4\n  weight_decay: 0.1\n  start_weight_decay: 0.05\n"
                      "  end_weight_decay: 0.1\n  weight_decay_incr_style: linear\n"));
  ASSERT_EQ(pretrain("--config_path run.yaml --plot_schedule lr.svg"), 0) << said();
  EXPECT_EQ(out_,
            "wrote lr.svg: learning rate and weight decay of 12 steps, 1 data-parallel rank\n");
  EXPECT_FALSE(std::filesystem::exists(dir_.file("output")));
  const std::string svg = dir_.read("lr.svg");
  const size_t second = svg.find("<g class=\"panel\"", svg.find("<g class=\"panel\"") + 1);
  const report::SvgPlot rate = report::read_svg(svg.substr(0, second));
  const report::SvgPlot decay = report::read_svg(svg.substr(second));
  ASSERT_EQ(rate.curves.size(), 1U);
  EXPECT_EQ(rate.curves[0].title, "learning rate");
  EXPECT_EQ(decay.curves[0].title, "weight decay");
  EXPECT_NEAR(decay.curves[0].lines[0].front().y, 0.05, decay.y_rounding);
  EXPECT_GT(decay.curves[0].lines[0].back().y, 0.09);
  ASSERT_EQ(pretrain("--config_path run.yaml"), 0) << said();
  const auto trained = steps();
  ASSERT_EQ(rate.curves[0].lines[0].size(), trained.size());
  for (size_t i = 0; i < trained.size(); ++i) {
    EXPECT_NEAR(rate.curves[0].lines[0][i].x, static_cast<double>(i + 1), rate.x_rounding);
    EXPECT_NEAR(rate.curves[0].lines[0][i].y, trained[i].at("lr").at(0), rate.y_rounding) << i;
  }
}

TEST_F(ReportTest, AScheduleNeedsANumberOfSteps) {
  dir_.write("run.yaml", replaced(kTinyRun, "training_iters: 3", "epochs: 2"));
  refuses("--config_path run.yaml --plot_schedule lr.svg",
          "without the data; set ... training_config.training_iters");
}

}  // namespace
}  // namespace tapestry
