// The program accuracy: its commands, their files, and what it refuses.
#include <set>

#include "tests/diagnosis/accuracy/made_up_curves.h"
#include "tests/examples/gpt/run_program.h"
#include "tests/says.h"

namespace tapestry {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class AccuracyProgram : public ProgramTest {
 protected:
  int accuracy(const std::string& arguments) { return run(TAPESTRY_ACCURACY, arguments); }
  nlohmann::json json(const std::string& name = "out.json") const {
    return nlohmann::json::parse(dir_.read(name));
  }
  void write_losses(const std::string& name, double shift) {
    std::string table = "step,loss,grad_norm\n";
    for (int step = 1; step <= 40; ++step) {
      const double wiggle = (step % 2 == 0 ? 1 : -1) * 0.001 * (1 + step % 5);
      table += std::to_string(step) + "," + std::to_string(3 + wiggle + shift * (1 + step % 3)) +
               ",1.5\n";
    }
    dir_.write(name, table);
  }
};

TEST_F(AccuracyProgram, SaysWhatItCanDo) {
  EXPECT_EQ(accuracy("--help"), 0) << said();
  EXPECT_THAT(out_, HasSubstr("curves"));
  EXPECT_THAT(out_, Says("0 ... if they agree"));
  EXPECT_EQ(accuracy("-h"), 0);
  EXPECT_EQ(accuracy("curves --help"), 0) << said();
  EXPECT_THAT(out_, HasSubstr("--loss_bound"));
  EXPECT_EQ(accuracy("curves -h"), 0);
}

TEST_F(AccuracyProgram, RefusesUnknownCommandsAndOptions) {
  const auto refused = [&](const std::string& words, const std::string& expected) {
    EXPECT_EQ(accuracy(words), 2) << words << said();
    EXPECT_THAT(err_, HasSubstr("accuracy: "));
    EXPECT_THAT(err_, Says(expected));
    EXPECT_EQ(out_, "");
  };
  write_losses("a.csv", 0);
  write_losses("b.csv", 0);
  refused("", "command is needed ... --help");
  refused("curvs a b", "there is no command 'curvs'; did you mean curves?");
  refused("something", "expected one of ");
  refused("--json a.json curves", "before the command");
  dir_.write("ours.yaml", kTinyRun);
  refused("checklist", "two files are needed: 0 given");
  refused("checklist ours.yaml", "two files are needed: 1 given");
  refused("checklist ours.yaml a.csv b.csv", "two files are needed: 3 given");
  refused("checklist ours.yaml nothing.yaml", "nothing.yaml: cannot be read");
  refused("checklist nothing.yaml ours.yaml", "nothing.yaml");
  refused("checklist ours.yaml a.csv", "a.csv: is none of ... YAML");
  refused("checklist ours.yaml ours.yaml --data_parallel_size 0", "--data_parallel_size is 0");
  refused("checklist ours.yaml ours.yaml --other_data_parallel_size 0",
          "--other_data_parallel_size ... is ... 0");
  refused("curves", "two runs or more ... 0 given");
  refused("curves a.csv", "two runs or more ... 1 given");
  refused("curves a.csv b.csv --loss-bound 1", "did you mean --loss_bound?");
  refused("curves a.csv b.csv --window 0", "--window ... 0; ... number of steps above ... 0");
  refused("curves a.csv b.csv --loss_bound -1",
          "--loss_bound ... -1; ... expected a number above ... 0");
  refused("curves a.csv b.csv --loss_bound small", "expected a number");
  refused("curves a.csv b.csv --json out.txt", "--json is 'out.txt'; ... ends in");
  refused("curves a.csv b.csv --html none/out.html", "there is no folder none");
  refused("curves a.csv b.csv --csv out", "--csv is 'out'");
  refused("curves a.csv nothing.csv", "nothing.csv: ... no such file or folder");
  refused("curves a.csv a.csv", "is given twice");
}

TEST_F(AccuracyProgram, AChecklistThatAgreesButForRounding) {
  prepare_text();
  dir_.write("ours.yaml", kTinyRun);
  EXPECT_EQ(accuracy("checklist ours.yaml ours.yaml --json out.json --html out.html "
                     "--data_parallel_size 1 --other_data_parallel_size 1"),
            0)
      << said();
  EXPECT_EQ(json()["command"], "checklist");
  EXPECT_EQ(json()["verdict"], "agree");
  EXPECT_TRUE(json()["stage"].is_null());
  EXPECT_THAT(out_, Says("text_text_document; ... first sample begins"));
  EXPECT_THAT(dir_.read("out.html"), HasSubstr("label_shift"));
}

TEST_F(AccuracyProgram, AChecklistThatDiffers) {
  dir_.write("ours.yaml", kTinyRun);
  dir_.write("other.sh", "pretrain_gpt.py --num-layers 1 --hidden-size 32 --lr 1e-3\n");
  EXPECT_EQ(accuracy("checklist ours.yaml other.sh --json out.json"), 1) << said();
  const nlohmann::json report = json();
  EXPECT_EQ(report["verdict"], "differ");
  EXPECT_EQ(report["stage"], "config");
  EXPECT_EQ(report["first"]["tensor"], "model_config.hidden_size");
  bool found = false;
  for (const nlohmann::json& finding : report["findings"]) {
    if (finding["key"] == "model_config.hidden_size") {
      found = true;
      EXPECT_EQ(finding["ours"], 16);
      EXPECT_EQ(finding["other"], 32);
      EXPECT_EQ(finding["status"], "differs");
      EXPECT_NE(finding["advice"], "");
    }
  }
  EXPECT_TRUE(found);
}

// A run that has trained stands for its configuration, and its metrics for its curve.
TEST_F(AccuracyProgram, TakesTheFoldersOfRuns) {
  prepare_text();
  dir_.write("run.yaml", kTinyRun);
  ASSERT_EQ(pretrain("--config_path run.yaml"), 0) << said();
  ASSERT_EQ(pretrain("--config_path run.yaml --set training_config.output_dir=again"), 0) << said();
  EXPECT_EQ(accuracy("checklist output again"), 0) << said();
  EXPECT_EQ(accuracy("curves output again --json out.json"), 0) << said();
  EXPECT_EQ(json()["verdict"], "accepted");
  EXPECT_EQ(json()["findings"][0]["largest_difference"], 0);
  EXPECT_EQ(json()["findings"][1]["quantity"], "grad_norm");
}

TEST_F(AccuracyProgram, CurvesThatAgree) {
  write_losses("a.csv", 0);
  write_losses("b.csv", 0);
  EXPECT_EQ(accuracy("curves a.csv b.csv --json out.json --html out.html --csv out.csv"), 0)
      << said();
  EXPECT_THAT(out_, HasSubstr("curves: accepted\n"));
  EXPECT_EQ(json()["command"], "curves");
  EXPECT_EQ(json()["verdict"], "accepted");
  EXPECT_TRUE(json()["first"].is_null());
  EXPECT_THAT(dir_.read("out.html"), HasSubstr("</html>"));
  EXPECT_THAT(dir_.read("out.csv"), HasSubstr("step,loss_ours,"));
}

TEST_F(AccuracyProgram, CurvesThatDiffer) {
  write_losses("a.csv", 0.004);
  write_losses("b.csv", 0);
  EXPECT_EQ(accuracy("curves a.csv b.csv --json out.json"), 1) << said();
  EXPECT_EQ(json()["verdict"], "one_sided");
  EXPECT_EQ(json()["first"]["step"], 1);
  EXPECT_EQ(json()["first"]["tensor"], "loss");
  // Bounds can be changed, and change the verdict.
  EXPECT_EQ(accuracy("curves a.csv b.csv --loss_bound 0.6"), 0) << said();
}

// The first made-up case of each verdict, from files.
TEST_F(AccuracyProgram, CurvesOfEveryVerdict) {
  std::set<std::string> seen;
  for (const accuracy::MadeUpCase& made_up : accuracy::made_up_cases()) {
    if (!seen.insert(made_up.verdict).second) {
      continue;
    }
    std::string files;
    for (const accuracy::CurveRun& run : accuracy::make_up(made_up, 1)) {
      std::ostringstream table;
      table.precision(17);
      table << "step,loss,grad_norm\n";
      for (size_t i = 0; i < run.steps.size(); ++i) {
        table << run.steps[i] << "," << run.loss[i] << "," << run.grad_norm[i] << "\n";
      }
      dir_.write(run.name + ".csv", table.str());
      files += " " + run.name + ".csv";
    }
    const bool mild = seen.size() <= 3;  // accepted, within_references and close come first
    EXPECT_EQ(this->accuracy("curves" + files + " --json out.json"), mild ? 0 : 1) << said();
    EXPECT_EQ(json()["verdict"], made_up.verdict) << made_up.name;
    EXPECT_EQ(json()["first"].is_null(), mild);
  }
  EXPECT_EQ(seen.size(), 6U);
}

TEST_F(AccuracyProgram, CurvesTakeMetricsThatAreNotFinite) {
  std::string ours;
  std::string reference;
  for (int step = 1; step <= 20; ++step) {
    const std::string begin = "{\"step\":" + std::to_string(step) + ",\"loss\":";
    ours += begin + (step < 12 ? "2.5" : "\"nan\"") + ",\"grad_norm\":1}\n";
    reference += begin + "2.5,\"grad_norm\":1}\n";
  }
  dir_.write("ours/metrics.jsonl", ours);
  dir_.write("reference/metrics.jsonl", reference);
  EXPECT_EQ(accuracy("curves ours reference --json out.json"), 1) << said();
  EXPECT_EQ(json()["verdict"], "jump");
  EXPECT_EQ(json()["first"]["step"], 12);
  EXPECT_EQ(json()["first"]["distance"], "inf");
}

}  // namespace
}  // namespace tapestry
