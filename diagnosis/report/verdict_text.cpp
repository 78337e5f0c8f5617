#include "diagnosis/report/verdict_text.h"

#include <algorithm>
#include <cmath>

#include "autograd/tensor/error.h"
#include "diagnosis/report/plot/letters.h"
#include "text/util/numbers.h"

namespace tapestry::accuracy {
namespace {

using plot::columns_of;
using plot::printable;

constexpr int kDigits = 6;
constexpr int kWidestColumn = 52;  // of all but the last: a name of a parameter

std::string number_cell(double value) {
  return std::isnan(value)   ? "nan"
         : std::isinf(value) ? (value > 0 ? "inf" : "-inf")
                             : number_text(value, kDigits);
}

void add_part(std::vector<std::pair<std::string, std::string>>& parts,
              const char* name,
              const std::optional<int64_t>& value) {
  if (value) {
    parts.emplace_back(name, std::to_string(*value));
  }
}

void add_part(std::vector<std::pair<std::string, std::string>>& parts,
              const char* name,
              const std::optional<std::string>& value) {
  if (value) {
    parts.emplace_back(name, *value);
  }
}

void add_part(std::vector<std::pair<std::string, std::string>>& parts,
              const char* name,
              const std::optional<double>& value) {
  if (value) {
    parts.emplace_back(name, number_cell(*value));
  }
}

std::string padded(const std::string& text, int width) {
  return text + std::string(static_cast<size_t>(std::max(width - columns_of(text), 0)), ' ');
}

// The last column is as long as it is: advice, which a terminal may wrap. Where some rows differ
// and others do not, those that do have a mark in front.
std::string table_text(const std::vector<Finding>& findings, size_t rows) {
  const std::vector<std::string> columns = columns_of_findings(findings);
  std::vector<std::vector<std::string>> table = {columns};
  for (size_t row = 0; row < rows; ++row) {
    table.emplace_back();
    for (const std::string& column : columns) {
      table.back().push_back(printable(cell_text(findings[row], column)));
    }
  }
  std::vector<int> widths(columns.size(), 0);
  for (const std::vector<std::string>& row : table) {
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], std::min(columns_of(row[i]), kWidestColumn));
    }
  }
  size_t bad = 0;
  for (size_t row = 0; row < rows; ++row) {
    bad += mark_of(findings[row]) == Mark::kBad ? 1 : 0;
  }
  const bool marks = bad > 0 && bad < rows;
  std::string text;
  for (const std::vector<std::string>& row : table) {
    const auto index = static_cast<size_t>(&row - table.data());
    const bool is_bad = index > 0 && mark_of(findings[index - 1]) == Mark::kBad;
    std::string line = !marks ? "" : is_bad ? "! " : "  ";
    for (size_t i = 0; i < row.size(); ++i) {
      line +=
          i + 1 == row.size() ? row[i] : padded(plot::cut(row[i], kWidestColumn), widths[i]) + "  ";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace

std::vector<std::string> columns_of_findings(const std::vector<Finding>& findings) {
  std::vector<std::string> columns;
  for (const Finding& finding : findings) {
    check<ValueError>(finding.is_object(), "a finding is ", finding.dump(),
                      "; expected an object of columns");
    for (const auto& [key, value] : finding.items()) {
      if (std::find(columns.begin(), columns.end(), key) == columns.end()) {
        columns.push_back(key);
      }
    }
  }
  return columns;
}

std::string cell_text(const Finding& value) {
  if (value.is_null()) {
    return {};
  }
  if (value.is_number_float()) {
    return number_cell(value.get<double>());
  }
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string cell_text(const Finding& finding, const std::string& column) {
  const auto found = finding.find(column);
  return found == finding.end() ? std::string() : cell_text(*found);
}

Mark mark_of(const Finding& finding) {
  const std::string status = cell_text(finding, "status");
  return status == "same" || status == "agree" || status == "ok" ? Mark::kGood
         : status == "differs" || status == "differ" || status == "missing" || status == "failed"
             ? Mark::kBad
         : status.empty() ? Mark::kNone
                          : Mark::kSoft;
}

std::vector<std::pair<std::string, std::string>> known_parts(const FirstDifference& first) {
  std::vector<std::pair<std::string, std::string>> parts;
  add_part(parts, "step", first.step);
  add_part(parts, "micro-batch", first.micro_batch);
  add_part(parts, "sample", first.sample);
  add_part(parts, "rank", first.rank);
  add_part(parts, "pass", first.pass);
  add_part(parts, "module", first.module);
  add_part(parts, "op", first.op);
  add_part(parts, "tensor", first.tensor);
  add_part(parts, "source", first.source);
  add_part(parts, "distance", first.distance);
  add_part(parts, "bound", first.bound);
  return parts;
}

std::string report_text(const VerdictReport& report) {
  const std::string verdict =
      concat(report.command, ": ", report.verdict_name(),
             report.stage ? concat(", at stage ", printable(*report.stage)) : std::string(), "\n");
  std::string text = verdict;
  if (report.first) {
    std::string parts;
    for (const auto& [name, value] : known_parts(*report.first)) {
      parts += concat(parts.empty() ? "" : ", ", name, " ", printable(value));
    }
    text += concat("first: ", parts, "\n");
  }
  for (const std::string& line : report.lines) {
    text += printable(line) + "\n";
  }
  if (report.findings.empty()) {
    return text;
  }
  const size_t rows = report.text_rows == 0 ? report.findings.size()
                                            : std::min(report.findings.size(), report.text_rows);
  text += "\n" + table_text(report.findings, rows);
  if (rows < report.findings.size()) {
    text += concat("and ", report.findings.size() - rows, " more: --json FILE has all\n");
  }
  return text + "\n" + verdict;
}

}  // namespace tapestry::accuracy
