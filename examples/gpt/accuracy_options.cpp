#include "examples/gpt/accuracy_options.h"

#include <cstdlib>
#include <sstream>

#include "autograd/tensor/error.h"
#include "examples/gpt/command_line.h"
#include "parallel_core/training/program.h"
#include "parallel_core/training/terminal.h"

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
  options.add_options()(
      "find_fault", po::value<std::string>()->value_name("REFERENCE"),
      "hold this training against a replay case or the output folder of a run, stage by stage, "
      "and end at the first that fails: config weights data forward loss backward reduction clip "
      "schedule optimizer determinism long_run none (docs/accuracy.md)");
  options.add_options()("expand", po::value<std::string>()->value_name("LAYOUTS"),
                        "with --find_fault: layouts as for --verify_layout, separated by "
                        "semicolons, that are then held against one process");
  options.add_options()("fault_steps", po::value<int64_t>()->default_value(3)->value_name("N"),
                        "steps that --find_fault compares number by number");
  options.add_options()("json", po::value<std::string>()->value_name("FILE.json"),
                        "also write the verdict of --find_fault to this file");
  options.add_options()("html", po::value<std::string>()->value_name("FILE.html"),
                        "and to this page");
  return options;
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
  options.steps = arguments["fault_steps"].as<int64_t>();
  check<ValueError>(options.steps >= 1, "--fault_steps ", options.steps,
                    ": expected at least one step");
  options.config_file = text("config_path");
  std::istringstream layouts(text("expand"));
  for (std::string layout; std::getline(layouts, layout, ';');) {
    options.expand.push_back(layout);
  }
  const accuracy::VerdictReport report = tapestry::find_fault(load, text("find_fault"), options);
  print_result(fit_to_terminal(OutputStream::kOut, accuracy::report_text(report)) +
               accuracy::write_report_files(report, files));
  return report.exit_code();
}

}  // namespace tapestry::examples
