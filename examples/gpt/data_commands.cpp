#include "examples/gpt/data_commands.h"

#include <cstdint>
#include <set>
#include <string>

#include "autograd/tensor/error.h"
#include "examples/gpt/command_line.h"
#include "parallel_core/training/program.h"
#include "parallel_core/training/which_data.h"

namespace tapestry::examples {
namespace {

namespace po = boost::program_options;

void note(const std::string& text) { say("pretrain_gpt", "note: " + text); }

}  // namespace

void add_data_options(po::options_description& options) {
  options.add_options()("which_data", po::value<std::string>()->value_name("STEP"),
                        "print documents and text of each row of a step, or of steps A-B");
  options.add_options()("which_steps", po::value<std::string>()->value_name("PREFIX:DOCUMENT"),
                        "print the rows, by step, that a document of the data is in");
  options.add_options()("ranks", po::value<int64_t>()->value_name("N"),
                        "of the job that these two, or --plan, are about");
}

bool asks_for_data(const po::variables_map& arguments) {
  const bool rows = arguments.count("which_data") != 0;
  const bool steps = arguments.count("which_steps") != 0;
  check<ValueError>(rows || steps || arguments.count("plan") != 0 || arguments.count("ranks") == 0,
                    "--ranks belongs to --which_data STEP, --which_steps PREFIX:DOCUMENT or --plan "
                    "RANKS, which are not given");
  check<ValueError>(!rows || !steps, "--which_data and --which_steps exclude each other");
  if (!rows && !steps) {
    return false;
  }
  static const std::set<std::string> kBelonging = {
      "config_path", "set", "from_hf", "model_type", "which_data", "which_steps", "ranks"};
  for (const auto& [name, value] : arguments) {
    check<ValueError>(kBelonging.contains(name) || value.defaulted(),
                      rows ? "--which_data" : "--which_steps", " and --", name,
                      " exclude each other");
  }
  return true;
}

void print_data(const po::variables_map& arguments,
                const AllConfig& config,
                const ProcessGroup& world) {
  if (world.rank() != 0) {
    return;
  }
  const auto print = [](const std::string& line) { print_result(line + "\n"); };
  const bool named = arguments.count("ranks") != 0;
  const auto* const option = arguments.count("which_data") != 0 ? "which_data" : "which_steps";
  const std::string asked = arguments[option].as<std::string>();
  // What is wrong with the question is said before the data are opened.
  const bool of_steps = arguments.count("which_data") != 0;
  const StepRange range = of_steps ? parse_step_range(asked) : StepRange{};
  const DocumentId document = of_steps ? DocumentId{} : parse_document_id(asked);
  int64_t ranks = world.size();
  if (named) {
    ranks = arguments["ranks"].as<int64_t>();
  } else if (ranks == 1) {
    ranks = ranks_of_model(config.parallel_config);
    note(concat("as a job of ", ranks, ranks == 1 ? " rank" : " ranks",
                " trains; --ranks N asks about one of N"));
  }
  WhichData data(config, ranks);
  if (of_steps) {
    data.rows(range, print);
  } else {
    data.rows_with(document, print);
  }
  for (const std::string& remark : data.remarks()) {
    note(remark);
  }
}

}  // namespace tapestry::examples
