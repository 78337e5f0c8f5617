// accuracy compare OURS OTHER
#include <boost/program_options.hpp>
#include <cmath>
#include <iostream>
#include <utility>

#include "autograd/tensor/error.h"
#include "diagnosis/accuracy/compare_dumps.h"
#include "examples/gpt/accuracy_commands.h"
#include "examples/gpt/command_line.h"
#include "parallel_core/training/program.h"

namespace tapestry::examples {

namespace po = boost::program_options;

int accuracy_compare(std::vector<std::string> words) {
  if (std::erase(words, "--bits") > 0) {
    return accuracy_compare_bits(std::move(words));
  }
  accuracy::ReportFiles files;
  accuracy::CompareOptions compare;
  std::string map;
  auto rows = static_cast<int64_t>(compare.rows);
  po::options_description options(
      "accuracy compare OURS OTHER [options]\n"
      "Two dumps (the `path` of their configurations), of any layout, dtype and program: the first "
      "tensor that is farther from the other side's than rounding explains, and the worst. How far "
      "rounding moves tensors is in rounding.csv of either folder, which pretrain_gpt "
      "--measure_rounding makes. See docs/dump.md. `accuracy compare --bits RUN RUN` compares two "
      "runs in exact mode; --bits --help lists its options.",
      help_columns());
  options.add_options()("map", po::value(&map)->value_name("FILE"),
                        "YAML or JSON file of expressions and texts: names in OTHER, and what they "
                        "are in OURS")(
      "multiple", po::value(&compare.multiple)->default_value(compare.multiple)->value_name("X"),
      "of the movement by rounding that is allowed")(
      "rows", po::value(&rows)->default_value(rows)->value_name("N"),
      "tensors in the table, those with the largest shares of their bounds");
  add_report_options(options, files);
  if (const auto topic = take_help(words)) {
    print_help(options, *topic);
    return kFinished;
  }
  const std::vector<std::string> folders =
      take_operands(words, 2, 2, "accuracy compare OURS OTHER: two dumps are needed");
  po::variables_map values = parse_command_line(words, options);
  po::notify(values);
  check<ValueError>(std::isfinite(compare.multiple) && compare.multiple >= 1, "--multiple is ",
                    compare.multiple, "; expected a number from 1 on");
  check<ValueError>(rows > 0, "--rows is ", rows, "; expected a number of tensors above 0");
  check_report_files(files);
  compare.rows = static_cast<size_t>(rows);
  if (!map.empty()) {
    compare.map = accuracy::NameMap(map);
  }
  return finish_report(compare_dumps(folders[0], folders[1], compare), files);
}

}  // namespace tapestry::examples
