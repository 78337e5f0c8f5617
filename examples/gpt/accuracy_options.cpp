#include "examples/gpt/accuracy_options.h"

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <set>
#include <sstream>

#include "autograd/tensor/error.h"
#include "diagnosis/verify/injection/injection.h"
#include "diagnosis/verify/injection/reference_state.h"
#include "diagnosis/verify/op_error.h"
#include "diagnosis/verify/run_twice.h"
#include "diagnosis/verify/zero_learning_rate.h"
#include "examples/gpt/command_line.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/training/log/terminal.h"
#include "parallel_core/training/program.h"

namespace tapestry::examples {

namespace po = boost::program_options;

po::options_description accuracy_options() {
  po::options_description options("Options", help_columns());
  options.add_options()("dump", po::value<std::string>()->value_name("FILE.json"),
                        "write tensors of steps as this dump configuration says (docs/dump.md); "
                        "without it the environment variable MINDSPORE_DUMP_CONFIG is asked");
  options.add_options()(
      "measure_rounding", po::value<int64_t>()->value_name("K"),
      "with a dump of tensors: repeat its steps K times with results of ops moved by up to half a "
      "unit in the last place, and once at another CPU level; the largest movements become "
      "rounding.csv in the dump's folder, which `accuracy compare` takes its bounds from");
  options.add_options()("inject_weights", po::value<std::string>()->value_name("DIR"),
                        "start weights of a reference: a dump, with --find_fault also a replay "
                        "case, or what "
                        "training_config.load_checkpoint takes (docs/injection.md)");
  options.add_options()("inject_data", po::value<std::string>()->value_name("DIR"),
                        "recorded steps, step_N/rank_R/*.npy, in place of the configured data");
  options.add_options()("inject_grads", po::value<std::string>()->value_name("DIR"),
                        "gradients of a reference, before clipping, in place of those computed, in "
                        "every step that DIR has: grads_step_N.safetensors, step_N/grad_NAME.npy, "
                        "or a dump");
  options.add_options()("inject_inputs", po::value<std::string>()->value_name("DIR"),
                        "values of a reference's dump, and their gradients, in place of the "
                        "model's wherever it goes on with them: each stretch between two is "
                        "computed from the reference's inputs, so that faults are told apart; a "
                        "dump shows what was computed before it is replaced");
  options.add_options()(
      "map", po::value<std::string>()->value_name("FILE"),
      "names in the folders of the four options above, and in that of --find_fault, "
      "and what they are here: YAML or JSON, as for `accuracy compare`");
  options.add_options()("op_error", po::value<std::string>()->value_name("REGEX"),
                        "in the first step, run ops whose name (type, or module and type) matches "
                        "again in float64 from the same inputs, forward and backward; print their "
                        "errors in units of what half a unit in the last place of the inputs does; "
                        "exit code 1 if one is beyond --op_error_multiple");
  options.add_options()("op_error_multiple", po::value<double>()->default_value(8)->value_name("X"),
                        "of that unit which an op may be off by");
  options.add_options()(
      "twice", po::value<int64_t>()->value_name("N"),
      "train the first N steps twice and compare bits: of all op results, losses, "
      "norms, gradients and weights; exit code 1 and the first op that differs");
  options.add_options()(
      "lr_zero", po::value<int64_t>()->value_name("N"),
      "N steps with learning rate 0 and no weight decay, for loss and norm of the "
      "start weights on many batches (metrics.jsonl); exit code 1 if a weight "
      "changes");
  options.add_options()(
      "find_fault", po::value<std::string>()->value_name("REFERENCE"),
      "hold this training against a replay case or the output folder of a run, stage by stage, "
      "and end at the first that fails: config weights data forward loss backward reduction clip "
      "schedule optimizer determinism long_run none (docs/accuracy.md)");
  options.add_options()("expand", po::value<std::string>()->value_name("LAYOUTS"),
                        "with --find_fault: layouts as for --verify_layout, separated by "
                        "semicolons, that are then held against one process");
  options.add_options()("fault_steps", po::value<int64_t>()->value_name("N"),
                        "steps that --find_fault compares number by number: 3, or 5 of a model of "
                        "up to 4 million weights");
  options.add_options()(
      "json", po::value<std::string>()->value_name("FILE.json"),
      "also write the verdict of --find_fault, --op_error, --twice or --lr_zero to this file");
  options.add_options()("html", po::value<std::string>()->value_name("FILE.html"),
                        "and to this page");
  return options;
}

namespace {

std::string option_if_given(const po::variables_map& arguments, const char* option) {
  if (arguments.count(option) == 0) {
    return {};
  }
  const auto text = arguments[option].as<std::string>();
  check<ValueError>(!text.empty(), "--", option, " is empty; give a name or leave it out");
  return text;
}

// Weights under names that only the map knows, or of a dump; else load_checkpoint takes them.
std::function<LogicalState()> given_start_weights(const std::string& path,
                                                  const accuracy::NameMap& map) {
  if (is_dump_folder(path)) {
    return [path, map] { return dumped_start_weights(path, map); };
  }
  if (map.empty()) {
    return {};
  }
  return [path, map] {
    LogicalState state;
    for (auto& [name, tensor] : read_weights(path)) {
      state.emplace(map.apply(name), tensor);
    }
    return state;
  };
}

}  // namespace

void check_trains(const po::variables_map& arguments, const std::string& mode) {
  const std::set<std::string> of_find_fault = {"inject_weights", "inject_data", "map"};
  for (const char* option : {"inject_weights", "inject_data", "inject_grads", "inject_inputs",
                             "map", "op_error", "twice", "lr_zero"}) {
    check<ValueError>(
        arguments.count(option) == 0 || (mode == "find_fault" && of_find_fault.contains(option)),
        "--", mode, " and --", option, " exclude each other");
  }
}

Injection injection_asked_for(const po::variables_map& arguments) {
  return {.weights = option_if_given(arguments, "inject_weights"),
          .grads = option_if_given(arguments, "inject_grads"),
          .data = option_if_given(arguments, "inject_data"),
          .inputs = option_if_given(arguments, "inject_inputs"),
          .map = option_if_given(arguments, "map")};
}

std::optional<TrainingTest> test_asked_for(const po::variables_map& arguments) {
  TrainingTest test;
  std::string chosen;
  for (const char* option : {"op_error", "twice", "lr_zero"}) {
    if (arguments.count(option) == 0) {
      continue;
    }
    check<ValueError>(chosen.empty(), "--", chosen, " and --", option, " exclude each other");
    chosen = option;
  }
  test.files = {.html = option_if_given(arguments, "html"),
                .json = option_if_given(arguments, "json")};
  if (chosen.empty()) {
    check<ValueError>(test.files.html.empty() && test.files.json.empty(),
                      "--json and --html: there is no report without --op_error, --twice or "
                      "--lr_zero");
    check<ValueError>(arguments["op_error_multiple"].defaulted(),
                      "--op_error_multiple has no effect without --op_error");
    return std::nullopt;
  }
  accuracy::check_report_files(test.files);
  if (chosen == "op_error") {
    test.run = [measured = OpErrorOptions{.names = option_if_given(arguments, "op_error"),
                                          .multiple = arguments["op_error_multiple"].as<double>()}](
                   const AllConfig& config, const PretrainOptions& options) {
      return measure_op_errors(config, options, measured);
    };
    return test;
  }
  const auto steps = arguments[chosen].as<int64_t>();
  check<ValueError>(arguments.count("measure_rounding") == 0, "--measure_rounding and --", chosen,
                    " exclude each other");
  check<ValueError>(steps >= 1, "--", chosen, " is ", steps,
                    "; expected a number of steps from 1 on");
  if (chosen == "lr_zero") {
    test.overrides.push_back(concat("training_config.training_iters=", steps));
    test.run = [steps](const AllConfig& config, const PretrainOptions& options) {
      return run_with_zero_learning_rate(config, options, steps);
    };
  } else {
    test.run = [steps](const AllConfig& config, const PretrainOptions& options) {
      return run_twice(config, options, steps);
    };
  }
  return test;
}

std::string accuracy_help() {
  std::ostringstream text;
  text << accuracy_options();
  return fit_to_terminal(OutputStream::kOut,
                         "Options of pretrain_gpt that look for faults. All need --config_path "
                         "FILE; docs/accuracy.md tells how they are used.\n\n") +
         fit_to_terminal(OutputStream::kOut, text.str());
}

std::optional<dump::DumpConfig> dump_asked_for(const po::variables_map& arguments) {
  std::string file;
  if (arguments.count("dump") != 0) {
    file = arguments["dump"].as<std::string>();
  } else if (const char* named = std::getenv("MINDSPORE_DUMP_CONFIG"); named != nullptr) {
    file = named;
  }
  if (file.empty()) {
    check<ValueError>(arguments.count("measure_rounding") == 0,
                      "--measure_rounding: there is no dump whose tensors could be measured; name "
                      "its configuration with --dump");
    return std::nullopt;
  }
  return dump::read_dump_config(file);
}

int find_fault(const po::variables_map& arguments,
               const ConfigLoader& load,
               const Distributed& job) {
  const auto text = [&](const char* option) {
    return arguments.count(option) == 0 ? std::string() : arguments[option].as<std::string>();
  };
  check<ValueError>(job.world()->size() == 1,
                    "--find_fault trains all ranks in one process; this job has ",
                    job.world()->size(), " processes");
  const accuracy::ReportFiles files = {.html = text("html"), .json = text("json")};
  accuracy::check_report_files(files);
  FindFaultOptions options;
  if (arguments.count("fault_steps") != 0) {
    options.steps = arguments["fault_steps"].as<int64_t>();
    check<ValueError>(*options.steps >= 1, "--fault_steps ", *options.steps,
                      ": expected at least one step");
  }
  options.config_file = text("config_path");
  std::istringstream layouts(text("expand"));
  for (std::string layout; std::getline(layouts, layout, ';');) {
    options.expand.push_back(layout);
  }
  Injection injection = injection_asked_for(arguments);
  if (!injection.map.empty()) {
    options.map = accuracy::NameMap(injection.map);
  }
  if (!injection.weights.empty()) {
    const std::string of_case = injection.weights + "/init.safetensors";
    injection.weights = std::filesystem::exists(of_case) ? of_case : injection.weights;
    options.start_weights = given_start_weights(injection.weights, options.map);
    if (options.start_weights) {
      injection.weights.clear();
    }
  }
  const ConfigLoader injected = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = injection_overrides(injection);
    all.insert(all.end(), more.begin(), more.end());
    return load(all);
  };
  const accuracy::VerdictReport report =
      tapestry::find_fault(injected, text("find_fault"), options);
  print_result(fit_to_terminal(OutputStream::kOut, accuracy::report_text(report)) +
               accuracy::write_report_files(report, files));
  return report.exit_code();
}

}  // namespace tapestry::examples
