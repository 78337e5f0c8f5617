#include "examples/gpt/plot_command.h"

#include <cstdlib>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/plot/plot.h"
#include "parallel_core/training/terminal.h"

namespace tapestry::examples {
namespace {

namespace po = boost::program_options;

bool is_given(const po::variables_map& arguments, const std::string& option) {
  return arguments.count(option) != 0 && !arguments[option].defaulted();
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

void add_plot_options(po::options_description& options) {
  options.add_options()(
      "plot",
      po::value<std::vector<std::string>>()->multitoken()->composing()->value_name("RUN..."),
      "draw the losses of runs, given as output folders or metrics.jsonl, as text, and exit");
  options.add_options()("out", po::value<std::string>()->default_value("", "")->value_name("FILE"),
                        "write the plot to this SVG file");
  options.add_options()("x", po::value<std::string>()->default_value("steps")->value_name("AXIS"),
                        "plot over steps, tokens or time");
  options.add_options()("smooth", po::value<double>()->default_value(0)->value_name("W"),
                        "smooth training losses in the plot: weight of the mean before a step, "
                        "such as 0.9");
}

bool asks_for_plot(const po::variables_map& arguments) {
  if (!is_given(arguments, "plot")) {
    for (const char* option : {"out", "x", "smooth"}) {
      check<ValueError>(!is_given(arguments, option), "--", option,
                        " belongs to --plot RUN..., which is not given");
    }
    return false;
  }
  for (const auto& [name, value] : arguments) {
    const bool belongs = name == "plot" || name == "out" || name == "x" || name == "smooth";
    check<ValueError>(belongs || value.defaulted(), "--", name,
                      " means nothing to --plot, which draws runs that there are; leave one out");
  }
  return true;
}

std::string plot(const po::variables_map& arguments) {
  plot::PlotOptions options{.runs = arguments["plot"].as<std::vector<std::string>>(),
                            .out = arguments["out"].as<std::string>(),
                            .x = arguments["x"].as<std::string>(),
                            .smooth = arguments["smooth"].as<double>()};
  check<ValueError>(!is_given(arguments, "out") || !options.out.empty(),
                    "--out is empty; expected the name of an SVG file");
  plot::TextStyle& style = options.style;
  style.columns = terminal_columns();
  style.color = shows_color(OutputStream::kOut);
  style.utf8 =
      plot::is_utf8_locale({environment("LC_ALL"), environment("LC_CTYPE"), environment("LANG")});
  return plot_runs(options);
}

}  // namespace tapestry::examples
