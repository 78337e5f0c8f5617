#include "autograd/tensor/error.h"
#include "diagnosis/report/page_style.h"
#include "diagnosis/report/plot/letters.h"
#include "diagnosis/report/verdict_report.h"
#include "diagnosis/report/verdict_text.h"

namespace tapestry::accuracy {
namespace {

using plot::escape_markup;

const char* class_of(Mark mark) {
  return mark == Mark::kGood   ? " class=\"good\""
         : mark == Mark::kSoft ? " class=\"soft\""
         : mark == Mark::kBad  ? " class=\"bad\""
                               : "";
}

std::string tile(const std::string& name, const std::string& value, Mark mark) {
  return concat("<div><dt>", escape_markup(name), "</dt><dd", class_of(mark), ">",
                escape_markup(value), "</dd></div>\n");
}

std::string verdict_tiles(const VerdictReport& report) {
  const Mark mark = report.outcome == Outcome::kAgrees    ? Mark::kGood
                    : report.outcome == Outcome::kDiffers ? Mark::kBad
                                                          : Mark::kSoft;
  std::string html = "<dl class=\"tiles\">\n" + tile("Verdict", report.verdict_name(), mark);
  if (report.stage) {
    html += tile("Stage", *report.stage, Mark::kNone);
  }
  return html + "</dl>\n";
}

std::string first_html(const VerdictReport& report) {
  if (!report.first) {
    return {};
  }
  std::string html =
      "<h2>Where they part first</h2>\n<div class=\"box\"><table class=\"keys\"><tbody>\n";
  for (const auto& [name, value] : known_parts(*report.first)) {
    html += concat("<tr><th scope=\"row\">", escape_markup(name), "</th><td>", escape_markup(value),
                   "</td></tr>\n");
  }
  return html + "</tbody></table></div>\n";
}

std::string verdict_legend(const VerdictReport& report) {
  if (report.charts.empty() || report.chart_runs.size() < 2) {
    return {};
  }
  std::string html = "<div class=\"legend\">\n";
  for (size_t run = 0; run < report.chart_runs.size(); ++run) {
    html += concat("<label class=\"r", run, "\"><input type=\"checkbox\" value=\"", run,
                   "\" checked hidden><span class=\"swatch r", run, "\"></span>",
                   escape_markup(report.chart_runs[run]), "</label>\n");
  }
  return html + "</div>\n";
}

std::string verdict_charts(const VerdictReport& report) {
  std::string html;
  for (const report::LineChart& chart : report.charts) {
    html += report::chart_html(chart);
  }
  return html.empty()
             ? html
             : verdict_legend(report) + "<section class=\"charts\">\n" + html + "</section>\n";
}

std::string findings_html(const VerdictReport& report) {
  if (report.findings.empty()) {
    return {};
  }
  const std::vector<std::string> columns = columns_of_findings(report.findings);
  std::string html = "<h2>Findings</h2>\n<div class=\"box\"><table><thead><tr>";
  for (const std::string& column : columns) {
    html += concat("<th scope=\"col\">", escape_markup(column), "</th>");
  }
  html += "</tr></thead><tbody>\n";
  for (const Finding& finding : report.findings) {
    html += "<tr>";
    for (size_t i = 0; i < columns.size(); ++i) {
      const std::string text = escape_markup(cell_text(finding, columns[i]));
      const auto value = finding.find(columns[i]);
      const bool number = value != finding.end() && value->is_number();
      html += i == 0 ? concat("<th scope=\"row\" class=\"mono\">", text, "</th>")
                     : concat("<td",
                              columns[i] == "status" ? class_of(mark_of(finding))
                              : number               ? " class=\"num\""
                                                     : "",
                              ">", text, "</td>");
    }
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

}  // namespace

std::string report_html(const VerdictReport& report, const std::string& made) {
  const std::string command = escape_markup("accuracy " + report.command);
  const std::string title = report.title.empty() ? command : escape_markup(report.title);
  std::string html = concat(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta "
      "name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<meta "
      "http-equiv=\"Content-Security-Policy\" content=\"default-src 'none';style-src "
      "'unsafe-inline';script-src 'unsafe-inline'\">\n<title>",
      command, ": ", title, "</title>\n<style>\n", report::page_style(report.chart_runs.size()),
      "</style>\n</head>\n<body data-x=\"step\">\n<header><h1>", title, "</h1>\n<p>", command,
      "</p></header>\n<main>\n", verdict_tiles(report), first_html(report));
  for (const std::string& line : report.lines) {
    html += concat("<p>", escape_markup(line), "</p>\n");
  }
  html += verdict_charts(report) + findings_html(report);
  return concat(html, "</main>\n<footer>", escape_markup(made), "</footer>\n<script>\n",
                report::page_script(), "</script>\n</body>\n</html>\n");
}

}  // namespace tapestry::accuracy
