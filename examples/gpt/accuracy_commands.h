// The commands of the program accuracy, each in a file of its own.
#pragma once

#include <boost/program_options.hpp>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "diagnosis/report/verdict_report.h"

namespace tapestry::examples {

/// A command takes the words behind its name, prints what it has to say and returns the exit code:
/// accuracy::Outcome. What it throws is bad input: nothing can be compared.
struct AccuracyCommand {
  std::string_view name;
  std::string_view summary;  ///< a line of `accuracy --help`
  int (*run)(std::vector<std::string> words);
};

int accuracy_checklist(std::vector<std::string> words);
int accuracy_compare(std::vector<std::string> words);
/// accuracy compare --bits, without that word.
int accuracy_compare_bits(std::vector<std::string> words);
int accuracy_curves(std::vector<std::string> words);

/// --json and --html, for the options of a command; `files` receives them at po::notify.
void add_report_options(boost::program_options::options_description& options,
                        accuracy::ReportFiles& files);

/// The page of options of `accuracy COMMAND --help`.
void print_help(const boost::program_options::options_description& options,
                const std::string& topic);

/// Prints the report and writes its files. Its exit code.
int finish_report(const accuracy::VerdictReport& report, const accuracy::ReportFiles& files);

/// The words in front of the first option, taken out of `words`: OURS and OTHER. ValueError, with
/// `usage`, for fewer than `least` or more than `most` of them (0: any number).
std::vector<std::string> take_operands(std::vector<std::string>& words,
                                       size_t least,
                                       size_t most,
                                       const std::string& usage);

}  // namespace tapestry::examples
