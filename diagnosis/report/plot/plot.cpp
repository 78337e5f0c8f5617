#include "diagnosis/report/plot/plot.h"

#include <algorithm>
#include <cctype>

#include "autograd/io/atomic_file.h"
#include "autograd/tensor/error.h"
#include "diagnosis/report/plot/curves.h"
#include "diagnosis/report/plot/letters.h"
#include "diagnosis/report/plot/run_metrics.h"
#include "diagnosis/report/plot/svg_chart.h"
#include "diagnosis/report/plot/text_chart.h"

namespace tapestry::plot {

std::string plot_runs(const PlotOptions& options) {
  const XAxis axis = parse_x_axis(options.x);
  check<ValueError>(options.out.empty() || options.out.ends_with(".svg"), "--out is '", options.out,
                    "'; expected a name that ends in .svg");
  const std::vector<RunMetrics> runs = read_runs(options.runs);
  const Chart chart = make_chart(runs, axis, options.smooth);
  if (options.out.empty()) {
    return text_chart(chart, options.style);
  }
  write_file_atomically(options.out, svg_chart(chart));
  std::string text = concat("wrote ", options.out, ": ", chart.curves.size(),
                            chart.curves.size() == 1 ? " curve of " : " curves of ", runs.size(),
                            runs.size() == 1 ? " run\n" : " runs\n");
  for (const std::string& note : chart.notes) {
    text += "note: " + printable(note) + "\n";
  }
  return text;
}

bool is_utf8_locale(const std::vector<std::string>& values) {
  const auto set = std::find_if(values.begin(), values.end(),
                                [](const std::string& value) { return !value.empty(); });
  if (set == values.end()) {
    return false;
  }
  std::string name;
  for (const char c : *set) {
    if (c != '-') {
      name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  return name.find(".utf8") != std::string::npos;
}

}  // namespace tapestry::plot
