#include "diagnosis/report/page.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "autograd/tensor/error.h"
#include "diagnosis/report/page_style.h"
#include "diagnosis/report/plot/letters.h"
#include "text/util/numbers.h"

namespace tapestry::report {
namespace {

using plot::escape_markup;

constexpr size_t kMostRunsOfAPage = 26;

// ---- Key figures.

struct Figure {
  std::string name;
  std::string value;
  std::string remark;  // smaller; may be empty
};

std::optional<double> last_value(const RunRecord& run, const std::string& name) {
  const std::vector<double>* values = run.column(name);
  if (values == nullptr || std::isnan(values->back())) {
    return std::nullopt;
  }
  return values->back();
}

std::vector<double> finite_values(std::vector<double> values) {
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  return values;
}

double sum_of(const RunRecord& run, const std::string& name) {
  const std::vector<double>* values = run.column(name);
  const std::vector<double> finite =
      values == nullptr ? std::vector<double>{} : finite_values(*values);
  return std::accumulate(finite.begin(), finite.end(), 0.0);
}

Figure figure_of_steps(const RunRecord& run) {
  Figure figure{.name = "Steps", .value = amount_text(static_cast<double>(run.steps.back()))};
  for (const ConfigEntry& entry : run.config) {
    if (entry.section == "training_config" && entry.key == "training_iters" && entry.value != "0") {
      const double planned = std::strtod(entry.value.c_str(), nullptr);
      figure.remark = "of " + (planned > 0 ? amount_text(planned) : entry.value);
    }
  }
  if (run.steps.front() > 1) {
    figure.remark += concat(figure.remark.empty() ? "" : ", ", "from ", run.steps.front());
  }
  return figure;
}

Figure figure_of_evaluation(const RunRecord& run) {
  Figure figure{.name = "Lowest evaluation", .value = "", .remark = ""};
  const std::vector<double>* values = run.column("eval_loss");
  double lowest = std::numeric_limits<double>::infinity();
  for (size_t i = 0; values != nullptr && i < values->size(); ++i) {
    if ((*values)[i] < lowest) {
      lowest = (*values)[i];
      figure.value = number_text(lowest);
      figure.remark =
          concat("step ", run.steps[i], ", perplexity ", number_text(std::exp(lowest), 4));
    }
  }
  return figure;
}

Figure figure_of_throughput(const RunRecord& run) {
  std::vector<double> values = finite_values(tokens_per_second(run));
  if (values.empty()) {
    return {.name = "Throughput", .value = "", .remark = ""};
  }
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return {.name = "Throughput", .value = amount_text(*middle), .remark = "tokens/s, median"};
}

Figure figure_of_memory(const RunRecord& run) {
  const std::vector<double>* values = run.column("peak_bytes");
  const std::vector<double> finite =
      values == nullptr ? std::vector<double>{} : finite_values(*values);
  return {.name = "Peak memory",
          .value = finite.empty() ? std::string()
                                  : bytes_text(*std::max_element(finite.begin(), finite.end())),
          .remark = finite.empty() ? "" : "rank 0"};
}

// The same figures of every run, in the same order.
std::vector<Figure> figures_of(const RunRecord& run) {
  const std::optional<double> loss = last_value(run, "loss");
  const std::optional<double> test = last_value(run, "test_loss");
  const double seconds = sum_of(run, "step_time_ms") / 1000;
  const size_t missed = run.not_finite.size() + run.skipped.size();
  return {figure_of_steps(run),
          {.name = "Tokens", .value = amount_text(sum_of(run, "tokens")), .remark = ""},
          {.name = "Last loss", .value = loss ? number_text(*loss) : "not finite", .remark = ""},
          figure_of_evaluation(run),
          {.name = "Test loss", .value = test ? number_text(*test) : "", .remark = ""},
          {.name = "Time of the steps", .value = duration_text(seconds), .remark = ""},
          figure_of_throughput(run),
          figure_of_memory(run),
          {.name = "Steps without update", .value = std::to_string(missed), .remark = ""}};
}

std::string swatch(size_t run) { return concat("<span class=\"swatch r", run, "\"></span>"); }

std::string tiles_html(const RunRecord& run) {
  std::string html = "<dl class=\"tiles\">\n";
  for (const Figure& figure : figures_of(run)) {
    if (!figure.value.empty()) {
      html += concat("<div><dt>", figure.name, "</dt><dd>", escape_markup(figure.value));
      html +=
          figure.remark.empty() ? "" : concat("<small>", escape_markup(figure.remark), "</small>");
      html += "</dd></div>\n";
    }
  }
  return html + "</dl>\n";
}

std::string run_heads(const std::vector<RunRecord>& runs) {
  std::string html;
  for (size_t run = 0; run < runs.size(); ++run) {
    html += concat("<th scope=\"col\">", swatch(run), escape_markup(runs[run].name), "</th>");
  }
  return html;
}

std::string figures_table(const std::vector<RunRecord>& runs) {
  std::vector<std::vector<Figure>> figures;
  for (const RunRecord& run : runs) {
    figures.push_back(figures_of(run));
  }
  std::string html = concat("<div class=\"box\"><table><thead><tr><th></th>", run_heads(runs),
                            "</tr></thead><tbody>\n");
  for (size_t row = 0; row < figures.front().size(); ++row) {
    if (std::all_of(figures.begin(), figures.end(),
                    [&](const auto& own) { return own[row].value.empty(); })) {
      continue;
    }
    html += concat("<tr><th scope=\"row\">", figures.front()[row].name, "</th>");
    for (const std::vector<Figure>& own : figures) {
      html += concat("<td>", own[row].value.empty() ? "–" : escape_markup(own[row].value));
      html += own[row].remark.empty()
                  ? std::string()
                  : concat(" <span class=\"soft\">", escape_markup(own[row].remark), "</span>");
      html += "</td>";
    }
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

// ---- Charts.

std::string legend_html(const std::vector<RunRecord>& runs) {
  if (runs.size() < 2) {
    return {};
  }
  std::string html = "<div class=\"legend\">\n";
  for (size_t run = 0; run < runs.size(); ++run) {
    html += concat("<label class=\"r", run, "\"><input type=\"checkbox\" value=\"", run,
                   "\" checked hidden>", swatch(run), escape_markup(runs[run].name), "</label>\n");
  }
  return html + "</div>\n";
}

std::string charts_html(const std::vector<LineChart>& charts) {
  std::string html;
  for (const LineChart& chart : charts) {
    html += chart_html(chart);
  }
  return html.empty() ? html : "<section class=\"charts\">\n" + html + "</section>\n";
}

// ---- Health.

std::string named(const std::vector<RunRecord>& runs, size_t run) {
  return runs.size() == 1 ? std::string()
                          : concat(swatch(run), " <b>", escape_markup(runs[run].name), "</b>: ");
}

std::string counted(size_t count, const char* one, const char* many) {
  return concat(count, " ", count == 1 ? one : many);
}

std::string missed_steps(const RunRecord& run) {
  constexpr size_t kMostRanges = 20;
  std::string text;
  if (!run.not_finite.empty()) {
    text += concat("<span class=\"bad\">", counted(run.not_finite.size(), "step", "steps"),
                   " without an update, as gradients were not finite</span>: ",
                   ranges_text(run.not_finite, kMostRanges), ". ");
  }
  if (!run.skipped.empty()) {
    text +=
        concat("<span class=\"bad\">", counted(run.skipped.size(), "step", "steps"),
               " skipped for the global norm</span>: ", ranges_text(run.skipped, kMostRanges), ".");
  }
  return text.empty() ? "every step has updated the weights." : text;
}

std::string health_table(const RunRecord& run) {
  std::string html =
      "<div "
      "class=\"box\"><table><thead><tr><th>checkpoint</th><th>health</th></tr></thead><tbody>\n";
  for (const CheckpointHealth& checkpoint : run.health) {
    html += concat("<tr><td class=\"mono\">", escape_markup(checkpoint.name), "</td><td class=\"",
                   checkpoint.healthy ? "good\">healthy" : "bad\">unhealthy", "</td></tr>\n");
  }
  return html + "</tbody></table></div>\n";
}

std::string health_html(const std::vector<RunRecord>& runs) {
  std::string html = "<h2>Health</h2>\n";
  for (size_t run = 0; run < runs.size(); ++run) {
    const auto unhealthy =
        std::count_if(runs[run].health.begin(), runs[run].health.end(),
                      [](const CheckpointHealth& checkpoint) { return !checkpoint.healthy; });
    std::string text = missed_steps(runs[run]);
    text.front() = runs.size() == 1 && text.front() == 'e' ? 'E' : text.front();
    html += concat("<p>", named(runs, run), text, "</p>\n");
    if (!runs[run].health.empty()) {
      html += concat("<details", unhealthy > 0 ? " open" : "", "><summary>", named(runs, run),
                     counted(runs[run].health.size(), "checkpoint", "checkpoints"), " recorded, ",
                     unhealthy, " unhealthy</summary>\n", health_table(runs[run]), "</details>\n");
    }
  }
  return html;
}

// ---- Norms and other numbers by name, memory by kind.

std::string course_table(const std::map<std::string, Envelope>& table) {
  std::string html =
      "<div class=\"box\"><table><thead><tr><th>name</th><th>course</th><th "
      "class=\"num\">first</th>"
      "<th class=\"num\">last</th><th class=\"num\">highest</th><th class=\"num\">at step</th></tr>"
      "</thead><tbody>\n";
  constexpr int kDigits = 4;
  for (const auto& [name, course] : table) {
    html += concat("<tr><td class=\"mono\">", escape_markup(name), "</td>");
    if (course.empty()) {
      html += "<td colspan=\"5\" class=\"bad\">never finite</td></tr>\n";
      continue;
    }
    html += concat("<td>", sparkline_html(course.points()), "</td><td class=\"num\">",
                   number_text(course.first().y, kDigits), "</td><td class=\"num\">",
                   number_text(course.last().y, kDigits), "</td><td class=\"num\">",
                   number_text(course.highest().y, kDigits), "</td><td class=\"num\">",
                   static_cast<int64_t>(course.highest().x), "</td></tr>\n");
  }
  return html + "</tbody></table></div>\n";
}

std::string tables_html(const std::vector<RunRecord>& runs) {
  std::string html;
  for (size_t run = 0; run < runs.size(); ++run) {
    for (const auto& [name, table] : runs[run].tables) {
      html += concat("<details><summary>", named(runs, run), "<span class=\"mono\">",
                     escape_markup(name), "</span>, ", counted(table.size(), "name", "names"),
                     "</summary>\n", course_table(table), "</details>\n");
    }
  }
  return html.empty() ? html : "<h2>By name</h2>\n" + html;
}

std::string memory_html(const std::vector<RunRecord>& runs) {
  std::vector<std::string> kinds;
  for (const RunRecord& run : runs) {
    for (const MemoryOfKind& memory : run.memory) {
      if (std::find(kinds.begin(), kinds.end(), memory.kind) == kinds.end()) {
        kinds.push_back(memory.kind);
      }
    }
  }
  if (kinds.empty()) {
    return {};
  }
  std::string html = concat(
      "<h2>Memory of rank 0</h2>\n<div class=\"box\"><table><thead><tr><th></th>",
      runs.size() == 1 ? "<th scope=\"col\">peak</th><th scope=\"col\">after the last step</th>"
                       : run_heads(runs),
      "</tr></thead><tbody>\n");
  for (const std::string& kind : kinds) {
    html += concat("<tr><th scope=\"row\">", escape_markup(kind), "</th>");
    for (const RunRecord& run : runs) {
      const auto found =
          std::find_if(run.memory.begin(), run.memory.end(),
                       [&](const MemoryOfKind& memory) { return memory.kind == kind; });
      const bool known = found != run.memory.end();
      html += concat("<td>", known ? bytes_text(found->peak_bytes) : "–", "</td>");
      if (runs.size() == 1) {
        html += concat("<td>", known ? bytes_text(found->current_bytes) : "–", "</td>");
      }
    }
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

// ---- Configuration.

std::string config_rows(const std::vector<ConfigRow>& rows, bool one_run) {
  std::string html;
  std::string section;
  for (const ConfigRow& row : rows) {
    if (row.section != section) {
      section = row.section;
      html += concat("<tr class=\"section\"><th colspan=\"", one_run ? 3 : row.values.size() + 1,
                     "\" scope=\"colgroup\">", escape_markup(section), "</th></tr>\n");
    }
    html += concat("<tr><th scope=\"row\">", escape_markup(row.key), "</th>");
    for (size_t run = 0; run < row.values.size(); ++run) {
      const bool own = row.differs && row.values[run] != row.values.front();
      html += concat("<td", own ? " class=\"own\"" : "", ">",
                     row.values[run] ? escape_markup(*row.values[run]) : "–", "</td>");
    }
    html += one_run ? concat("<td class=\"soft\">", escape_markup(row.origins.front()), "</td>")
                    : std::string();
    html += "</tr>\n";
  }
  return html;
}

std::string config_table(const std::vector<RunRecord>& runs, const std::vector<ConfigRow>& rows) {
  const bool one = runs.size() == 1;
  return concat("<div class=\"box\"><table class=\"keys\"><thead><tr><th>key</th>",
                one ? "<th>value</th><th>from</th>" : run_heads(runs), "</tr></thead><tbody>\n",
                config_rows(rows, one), "</tbody></table></div>\n");
}

std::vector<ConfigRow> chosen(const std::vector<ConfigRow>& rows,
                              bool (*wanted)(const ConfigRow& row)) {
  std::vector<ConfigRow> some;
  std::copy_if(rows.begin(), rows.end(), std::back_inserter(some), wanted);
  return some;
}

std::string config_html(const std::vector<RunRecord>& runs) {
  std::vector<std::vector<ConfigEntry>> configs;
  for (const RunRecord& run : runs) {
    configs.push_back(run.config);
  }
  const std::vector<ConfigRow> all = compare_configs(configs);
  if (all.empty()) {
    return {};
  }
  const bool one = runs.size() == 1;
  const std::vector<ConfigRow> some =
      one ? chosen(all, [](const ConfigRow& row) { return row.given; })
          : chosen(all, [](const ConfigRow& row) { return row.differs; });
  std::string html = one ? "<h2>Configuration</h2>\n" : "<h2>Configuration: differences</h2>\n";
  if (some.empty()) {
    html +=
        one ? "<p>Every key has its default.</p>\n" : "<p>The configurations are the same.</p>\n";
  } else {
    html += config_table(runs, some);
  }
  return concat(html, "<details><summary>All ", all.size(), " keys</summary>\n",
                config_table(runs, all), "</details>\n");
}

std::string samples_of_runs(const std::vector<RunRecord>& runs) {
  std::string html;
  for (size_t run = 0; run < runs.size(); ++run) {
    const std::string table = samples_html(runs[run].samples);
    if (!table.empty()) {
      html += concat("<details open><summary>", named(runs, run), "Last sampled</summary>\n", table,
                     "</details>\n");
    }
  }
  return html.empty() ? html : "<h2>Samples</h2>\n" + html;
}

std::string notes_html(const std::vector<RunRecord>& runs) {
  std::string html;
  for (size_t run = 0; run < runs.size(); ++run) {
    for (const std::string& note : runs[run].notes) {
      html += concat("<li>", named(runs, run), escape_markup(note), "</li>\n");
    }
  }
  return html.empty() ? html : "<h2>Notes</h2>\n<ul>\n" + html + "</ul>\n";
}

std::string title_of(const std::vector<RunRecord>& runs) {
  constexpr size_t kNamed = 3;
  std::string title;
  for (size_t run = 0; run < std::min(runs.size(), kNamed); ++run) {
    title += (run == 0 ? "" : ", ") + runs[run].name;
  }
  return runs.size() > kNamed ? concat(title, " and ", runs.size() - kNamed, " more") : title;
}

}  // namespace

std::string report_page(const std::vector<RunRecord>& runs, const PageOptions& options) {
  check<ValueError>(!runs.empty() && runs.size() <= kMostRunsOfAPage, runs.size(),
                    " runs; a report shows 1 to ", kMostRunsOfAPage);
  const RunCharts charts = make_charts(runs, options.charts);
  const std::string title = escape_markup(title_of(runs));
  std::string html = concat(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta "
      "name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\">\n<meta "
      "http-equiv=\"Content-Security-Policy\" "
      "content=\"default-src 'none';style-src 'unsafe-inline';script-src "
      "'unsafe-inline'\">\n<title>",
      title, "</title>\n<style>\n", page_style(runs.size()), "</style>\n</head>\n<body data-x=\"",
      charts.x_title == "steps" ? "step" : charts.x_title, "\">\n");
  html += concat("<header><h1>", title, "</h1>\n<p>",
                 runs.size() == 1 ? concat("A training run in <span class=\"mono\">",
                                           escape_markup(runs.front().folder), "</span>")
                                  : concat(runs.size(), " training runs side by side"),
                 ". Charts are drawn over ", charts.x_title, ".</p></header>\n<main>\n");
  html += runs.size() == 1 ? tiles_html(runs.front()) : figures_table(runs);
  html += legend_html(runs) + "<h2>Training</h2>\n" + charts_html(charts.main);
  const std::string more = charts_html(charts.more);
  html += more.empty() ? more : "<h2>More numbers</h2>\n" + more;
  html += samples_of_runs(runs) + health_html(runs) + tables_html(runs) + memory_html(runs) +
          config_html(runs) + notes_html(runs);
  return concat(html, "</main>\n<footer>", escape_markup(options.made), "</footer>\n<script>\n",
                page_script(), "</script>\n</body>\n</html>\n");
}

}  // namespace tapestry::report
