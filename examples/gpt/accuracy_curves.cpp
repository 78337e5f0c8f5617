// accuracy curves OURS REFERENCE...
#include <boost/program_options.hpp>

#include "autograd/io/atomic_file.h"
#include "autograd/tensor/error.h"
#include "diagnosis/accuracy/compare_curves.h"
#include "examples/gpt/accuracy_commands.h"
#include "examples/gpt/command_line.h"
#include "parallel_core/training/program.h"

namespace tapestry::examples {
namespace {

namespace po = boost::program_options;

void require_above_zero(const char* option, double value) {
  check<ValueError>(value > 0, option, " is ", value, "; expected a number above 0");
}

// 30 and 5: what the defaults' bounds are of the smallest bias that counts.
constexpr double kLossBiases = 30;
constexpr double kNormBiases = 5;

}  // namespace

int accuracy_curves(std::vector<std::string> words) {
  accuracy::ReportFiles files;
  accuracy::CurveOptions curves;
  std::string table;
  auto window = static_cast<int64_t>(curves.loss.window);
  po::options_description options(
      "accuracy curves OURS REFERENCE... [options]\n"
      "Runs by their output folder, metrics.jsonl, or a table (CSV) with the columns step and "
      "loss, "
      "and grad_norm where there is one. Several references span how far apart equal runs are. "
      "Verdicts: accepted, within_references, close (exit code 0), one_sided, late_drift, jump "
      "(1).",
      help_columns());
  options.add_options()(
      "loss_bound",
      po::value(&curves.loss.bound)->default_value(curves.loss.bound, "0.03")->value_name("X"),
      "differences of the loss stay below this; with a learning rate of 0: 0.001")(
      "jump_bound",
      po::value(&curves.loss.jump)->default_value(curves.loss.jump, "0.05")->value_name("X"),
      "the smallest jump of the loss that counts")(
      "close_bound",
      po::value(&curves.loss.close)->default_value(curves.loss.close, "0.01")->value_name("X"),
      "share of the reference's loss below which the end is close")(
      "norm_bound",
      po::value(&curves.grad_norm.bound)
          ->default_value(curves.grad_norm.bound, "0.05")
          ->value_name("X"),
      "differences of gradient norms stay below this share of the reference's norm")(
      "significance",
      po::value(&curves.loss.significance)
          ->default_value(curves.loss.significance, "5")
          ->value_name("X"),
      "standard errors from which on a mean difference is one-sided")(
      "window", po::value(&window)->default_value(window)->value_name("N"),
      "steps over which means are taken; fewer where there are not eight times as many")(
      "csv", po::value(&table)->value_name("FILE"),
      "also write the differences of each step to this file");
  add_report_options(options, files);
  if (const auto topic = take_help(words)) {
    print_help(options, *topic);
    return kFinished;
  }
  const std::vector<std::string> paths =
      take_operands(words, 2, 0, "accuracy curves OURS REFERENCE...: two runs or more are needed");
  po::variables_map values = parse_command_line(words, options);
  po::notify(values);
  require_above_zero("--loss_bound", curves.loss.bound);
  require_above_zero("--jump_bound", curves.loss.jump);
  require_above_zero("--close_bound", curves.loss.close);
  require_above_zero("--norm_bound", curves.grad_norm.bound);
  require_above_zero("--significance", curves.loss.significance);
  check<ValueError>(window > 0, "--window is ", window, "; expected a number of steps above 0");
  check<ValueError>(table.empty() || table.ends_with(".csv"), "--csv is '", table,
                    "'; expected a name that ends in .csv");
  check_report_files(files);
  curves.loss.window = curves.grad_norm.window = static_cast<size_t>(window);
  curves.grad_norm.significance = curves.loss.significance;
  curves.loss.bias = curves.loss.bound / kLossBiases;
  curves.grad_norm.bias = curves.grad_norm.bound / kNormBiases;
  curves.grad_norm.jump = curves.grad_norm.bound * kNormBiases;
  curves.grad_norm.close = curves.grad_norm.bound;

  std::vector<accuracy::CurveRun> runs = accuracy::read_curves(paths);
  const accuracy::CurveComparison comparison =
      compare_curves(runs.front(), {runs.begin() + 1, runs.end()}, curves);
  const int code = finish_report(comparison.report, files);
  if (!table.empty()) {
    write_file_atomically(table, comparison.differences);
    print_result(concat("wrote ", table, "\n"));
  }
  return code;
}

}  // namespace tapestry::examples
