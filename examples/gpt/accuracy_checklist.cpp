// accuracy checklist OURS OTHER
#include <tapestry_version.h>

#include <boost/program_options.hpp>

#include "autograd/tensor/error.h"
#include "diagnosis/accuracy/checklist.h"
#include "examples/gpt/accuracy_commands.h"
#include "examples/gpt/command_line.h"
#include "parallel_core/training/program.h"

namespace tapestry::examples {

namespace po = boost::program_options;

int accuracy_checklist(std::vector<std::string> words) {
  accuracy::ReportFiles files;
  int64_t ranks = 1;
  int64_t other_ranks = 0;
  po::options_description options(
      "accuracy checklist OURS OTHER [options]\n"
      "OURS is a configuration of pretrain_gpt. OTHER is one too, a static configuration of "
      "MindSpore "
      "Transformers, the config.json of a Hugging Face model or of a stored reference run, or a "
      "file "
      "with the arguments of Megatron-LM, as a command line or JSON. Exit code 0 if nothing "
      "differs "
      "but for rounding, 1 if something does",
      help_columns());
  options.add_options()("data_parallel_size",
                        po::value(&ranks)->default_value(ranks)->value_name("N"),
                        "data-parallel ranks of OURS")(
      "other_data_parallel_size", po::value(&other_ranks)->value_name("N"),
      "those of OTHER, where it is a configuration of pretrain_gpt (default: those of OURS)");
  add_report_options(options, files);
  if (const auto topic = take_help(words)) {
    print_help(options, *topic);
    return kFinished;
  }
  const std::vector<std::string> paths =
      take_operands(words, 2, 2, "accuracy checklist OURS OTHER: two files are needed");
  po::variables_map values = parse_command_line(words, options);
  po::notify(values);
  check<ValueError>(ranks > 0, "--data_parallel_size is ", ranks, "; expected a number above 0");
  const bool own = values.count("other_data_parallel_size") > 0;
  check<ValueError>(!own || other_ranks > 0, "--other_data_parallel_size is ", other_ranks,
                    "; expected a number above 0");
  check_report_files(files);
  const std::string program = concat("Tapestry ", kVersion);
  const accuracy::ChecklistSide ours =
      accuracy::read_configuration(paths[0], {.data_parallel_size = ranks, .program = program});
  const accuracy::ChecklistSide other = accuracy::read_other_side(
      paths[1], {.data_parallel_size = own ? other_ranks : ranks, .program = program});
  return finish_report(run_checklist(ours, other), files);
}

}  // namespace tapestry::examples
