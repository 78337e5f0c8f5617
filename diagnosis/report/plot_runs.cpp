#include "diagnosis/report/plot_runs.h"

#include <algorithm>
#include <cmath>

#include "autograd/io/atomic_file.h"
#include "autograd/tensor/error.h"
#include "diagnosis/report/chart_drawing.h"
#include "diagnosis/report/chart_file.h"
#include "diagnosis/report/plot/letters.h"
#include "diagnosis/report/run_charts.h"
#include "text/util/numbers.h"

namespace tapestry::report {
namespace plot_of_runs {
namespace {

using plot::Point;

bool is_listed(const ChartCurve& curve) { return curve.kind != LineKind::kFaint; }

std::vector<std::string> notes_on(const std::vector<RunRecord>& runs) {
  std::vector<std::string> notes;
  for (const RunRecord& run : runs) {
    for (const std::string& note : run.notes) {
      notes.push_back(concat(run.name, ": ", note));
    }
    const std::vector<double>* losses = run.column("loss");
    const size_t steps = run.steps.size();
    const auto gaps =
        losses == nullptr
            ? steps
            : static_cast<size_t>(std::count_if(losses->begin(), losses->end(),
                                                [](double loss) { return !std::isfinite(loss); }));
    if (gaps > 0) {
      notes.push_back(concat(run.name, ": ", gaps, " of ", steps,
                             gaps == 1 ? " training losses is not finite: a gap"
                                       : " training losses are not finite: gaps"));
    }
  }
  return notes;
}

std::vector<std::string> table_row(const ChartCurve& curve, bool whole_x) {
  const Point* first = nullptr;
  const Point* last = nullptr;
  const Point* lowest = nullptr;
  for (const Point& point : curve.points) {
    if (std::isfinite(point.y)) {
      first = first == nullptr ? &point : first;
      last = &point;
      lowest = lowest == nullptr || point.y < lowest->y ? &point : lowest;
    }
  }
  const std::string label = plot::printable(curve_label(curve));
  if (first == nullptr) {
    return {label, "-", "-", "-", "-"};
  }
  return {label, number_text(first->y), number_text(last->y), number_text(lowest->y),
          whole_x ? coordinate(lowest->x) : number_text(lowest->x)};
}

// Columns as wide as what they hold: names to the left, numbers to the right.
std::string loss_table(const LineChart& chart, const std::string& x_title) {
  std::vector<std::vector<std::string>> rows = {
      {"loss per token", "first", "last", "lowest", concat("at (", x_title, ")")}};
  for (const ChartCurve& curve : chart.lines) {
    if (is_listed(curve)) {
      rows.push_back(table_row(curve, chart.whole_x));
    }
  }
  std::vector<int> widths(rows.front().size());
  for (const std::vector<std::string>& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], plot::columns_of(row[i]));
    }
  }
  std::string text;
  for (const std::vector<std::string>& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string space(static_cast<size_t>(widths[i] - plot::columns_of(row[i])), ' ');
      text += i == 0 ? row[i] + space : "  " + space + row[i];
    }
    text += "\n";
  }
  return text;
}

}  // namespace
}  // namespace plot_of_runs

std::string plot_runs(const PlotOptions& options) {
  using namespace plot_of_runs;
  constexpr size_t kMostRuns = 26;
  const ChartOptions of_charts{.x = plot::parse_x_axis(options.x), .smooth = options.smooth};
  check<ValueError>(options.out.empty() || options.out.ends_with(".svg"), "--out is '", options.out,
                    "'; expected a name that ends in .svg");
  check<ValueError>(options.smooth >= 0 && options.smooth < 1, "--smooth is ", options.smooth,
                    "; expected a number from 0 to below 1");
  const std::vector<RunRecord> runs = read_run_records(options.runs, /*with_folders=*/false);
  check<ValueError>(!runs.empty() && runs.size() <= kMostRuns, runs.size(),
                    " runs; a picture shows 1 to ", kMostRuns);
  const LineChart chart = loss_chart(runs, of_charts);
  check<ValueError>(has_values(chart), runs.front().name,
                    runs.size() > 1 ? " and the others have" : " has",
                    " no finite loss: there is nothing to draw");
  const std::vector<std::string> notes = notes_on(runs);
  const std::string x_title = x_title_of(runs, of_charts);
  std::string text;
  if (options.out.empty()) {
    text = loss_table(chart, x_title);
  } else {
    write_file_atomically(options.out, charts_svg({chart}, x_title, notes));
    const auto curves = std::count_if(chart.lines.begin(), chart.lines.end(), is_listed);
    text = concat("wrote ", options.out, ": ", curves, curves == 1 ? " curve of " : " curves of ",
                  runs.size(), runs.size() == 1 ? " run\n" : " runs\n");
  }
  for (const std::string& note : notes) {
    text += "note: " + plot::printable(note) + "\n";
  }
  return text;
}

}  // namespace tapestry::report
