#include "examples/gpt/view_commands.h"

#include <optional>
#include <set>
#include <vector>

#include "autograd/tensor/error.h"
#include "diagnosis/report/plot_runs.h"
#include "diagnosis/report/write_report.h"

namespace tapestry::examples {
namespace {

namespace po = boost::program_options;

constexpr const char* kDetails[] = {"out", "x", "smooth"};

bool is_given(const po::variables_map& arguments, const std::string& option) {
  return arguments.count(option) != 0 && !arguments[option].defaulted();
}

std::string plot(const po::variables_map& arguments) {
  return report::plot_runs({.runs = arguments["plot"].as<std::vector<std::string>>(),
                            .out = arguments["out"].as<std::string>(),
                            .x = arguments["x"].as<std::string>(),
                            .smooth = arguments["smooth"].as<double>()});
}

std::string report(const po::variables_map& arguments, const std::string& version) {
  report::ReportOptions options{.runs = arguments["report"].as<std::vector<std::string>>(),
                                .out = arguments["out"].as<std::string>(),
                                .x = arguments["x"].as<std::string>(),
                                .version = version};
  if (is_given(arguments, "smooth")) {
    options.smooth = arguments["smooth"].as<double>();
  }
  return write_report(options);
}

}  // namespace

void add_view_options(po::options_description& options) {
  options.add_options()(
      "plot",
      po::value<std::vector<std::string>>()->multitoken()->composing()->value_name("RUN..."),
      "losses of runs (output folders or metrics.jsonl): a table, or with --out a picture");
  options.add_options()(
      "report",
      po::value<std::vector<std::string>>()->multitoken()->composing()->value_name("RUN..."),
      "write an HTML page about runs, to the first one or to --out");
  options.add_options()("out", po::value<std::string>()->default_value("", "")->value_name("FILE"),
                        "write the plot (SVG) or the report (HTML) to this file");
  options.add_options()("x", po::value<std::string>()->default_value("steps")->value_name("AXIS"),
                        "plot and report over steps, tokens or time");
  options.add_options()("smooth", po::value<double>()->default_value(0)->value_name("W"),
                        "smooth losses: weight of the mean before a step, such as 0.9");
}

bool asks_for_view(const po::variables_map& arguments) {
  const bool plots = is_given(arguments, "plot");
  const bool reports = is_given(arguments, "report");
  if (!plots && !reports) {
    for (const char* option : kDetails) {
      check<ValueError>(!is_given(arguments, option), "--", option,
                        " belongs to --plot RUN... or --report RUN..., which are not given");
    }
    return false;
  }
  check<ValueError>(!plots || !reports, "--plot and --report exclude each other");
  const std::set<std::string> belonging = {plots ? "plot" : "report", "out", "x", "smooth"};
  for (const auto& [name, value] : arguments) {
    check<ValueError>(belonging.count(name) != 0 || value.defaulted(), "--", name,
                      " means nothing to --", plots ? "plot" : "report", ", which ",
                      plots ? "draws" : "is about", " runs that there are; leave one out");
  }
  check<ValueError>(!is_given(arguments, "out") || !arguments["out"].as<std::string>().empty(),
                    "--out is empty; expected the name of an ", plots ? "SVG" : "HTML", " file");
  return true;
}

std::string view(const po::variables_map& arguments, const std::string& version) {
  return is_given(arguments, "plot") ? plot(arguments) : report(arguments, version);
}

}  // namespace tapestry::examples
