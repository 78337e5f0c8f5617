#include "examples/gpt/accuracy_options.h"

#include <cstdlib>
#include <sstream>

#include "autograd/tensor/error.h"
#include "examples/gpt/command_line.h"
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

}  // namespace tapestry::examples
