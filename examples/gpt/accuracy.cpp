// Says whether two sides agree, and where they part first if not:
//   accuracy checklist ours.yaml theirs.yaml
//   accuracy curves output reference --html curves.html
#include <algorithm>
#include <array>
#include <sstream>

#include "autograd/tensor/error.h"
#include "examples/gpt/accuracy_commands.h"
#include "examples/gpt/command_line.h"
#include "examples/gpt/option_tables.h"
#include "parallel_core/config/schema/schema.h"
#include "parallel_core/training/program.h"

namespace tapestry::examples {
namespace {

constexpr std::array<AccuracyCommand, 3> kCommands = {{
    {"checklist", "two configurations, key by key, before anything is trained", accuracy_checklist},
    {"compare", "dumps of a step, tensor by tensor; --bits: hashes of two runs", accuracy_compare},
    {"curves", "losses and gradient norms of runs, step by step", accuracy_curves},
}};

std::string help_text() {
  std::string text =
      "accuracy COMMAND ... [--json FILE] [--html FILE]\n"
      "Says whether two sides agree, and where they part first if not. Exit code 0 if they agree, "
      "1 "
      "if they differ, 2 if they cannot be compared.\n\nCommands:\n";
  constexpr size_t kWidth = 12;
  for (const AccuracyCommand& command : kCommands) {
    text +=
        concat("  ", command.name,
               std::string(std::max(kWidth, command.name.size() + 1) - command.name.size(), ' '),
               command.summary, "\n");
  }
  return text + "\n`accuracy COMMAND --help` lists what a command takes; see docs/accuracy.md.\n";
}

// {"page": ..., "options": [], "commands": [{"name", "doc"}, ...]}; each command has tables of its
// own.
std::string command_tables() {
  nlohmann::ordered_json tables =
      tables_of(help_text(), boost::program_options::options_description());
  for (const AccuracyCommand& command : kCommands) {
    tables["commands"].push_back({{"name", command.name}, {"doc", command.summary}});
  }
  return tables_text(tables);
}

const AccuracyCommand& command_named(const std::string& name) {
  std::vector<std::string_view> names;
  for (const AccuracyCommand& command : kCommands) {
    if (command.name == name) {
      return command;
    }
    names.push_back(command.name);
  }
  const std::string_view best = config::nearest(name, names);
  constexpr int kSimilar = 3;
  std::string expected;
  for (const std::string_view known : names) {
    expected += concat(expected.empty() ? "" : ", ", known);
  }
  throw ValueError(concat("there is no command '", name, "'; ",
                          config::edit_distance(name, best) <= kSimilar
                              ? concat("did you mean ", best, "?")
                              : concat("expected one of ", expected)));
}

int run_accuracy(std::vector<std::string> words) {
  check<ValueError>(!words.empty(), "a command is needed; --help lists them");
  const std::string name = words.front();
  if (name == "--help" || name == "-h" || name == "help") {
    if (words.size() > 1 && words[1] == kTablesTopic) {
      print_result(command_tables());
      return kFinished;
    }
    if (words.size() > 1) {  // accuracy --help curves
      return command_named(words[1]).run({"--help"});
    }
    print_result(help_text());
    return kFinished;
  }
  check<ValueError>(!name.starts_with("-"), "'", name,
                    "' stands before the command; write accuracy COMMAND ... ", name);
  words.erase(words.begin());
  return command_named(name).run(std::move(words));
}

}  // namespace

void add_report_options(boost::program_options::options_description& options,
                        accuracy::ReportFiles& files) {
  namespace po = boost::program_options;
  options.add_options()("help,h", "print this text")("json",
                                                     po::value(&files.json)->value_name("FILE"),
                                                     "also write the verdict as JSON to this file")(
      "html", po::value(&files.html)->value_name("FILE"), "also write it as a page to this file");
}

void print_help(const boost::program_options::options_description& options,
                const std::string& topic) {
  std::ostringstream text;
  text << options;
  print_wrapped(help_page(text.str(), options, topic));
}

int finish_report(const accuracy::VerdictReport& report, const accuracy::ReportFiles& files) {
  print_wrapped(report_text(report));
  print_result(write_report_files(report, files));
  return report.exit_code();
}

std::vector<std::string> take_operands(std::vector<std::string>& words,
                                       size_t least,
                                       size_t most,
                                       const std::string& usage) {
  const auto end = std::find_if(words.begin(), words.end(),
                                [](const std::string& word) { return word.starts_with("-"); });
  std::vector<std::string> operands(words.begin(), end);
  words.erase(words.begin(), end);
  check<ValueError>(operands.size() >= least && (most == 0 || operands.size() <= most), usage, ": ",
                    operands.size(), " given before the options; --help says what they are");
  return operands;
}

}  // namespace tapestry::examples

int main(int argc, char** argv) {
  try {
    return tapestry::examples::run_accuracy(tapestry::examples::words_of(argc, argv));
  } catch (const std::exception& error) {
    tapestry::examples::say("accuracy", tapestry::failure_message(error));
    return static_cast<int>(tapestry::accuracy::Outcome::kNotComparable);
  }
}
