// What every accuracy command ends in: a verdict, where it was reached, and the findings behind it,
// as text, as a page and as JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "autograd/io/json.h"
#include "diagnosis/report/line_chart.h"

namespace tapestry::accuracy {

/// What a verdict means to a script; the values are the exit codes.
enum class Outcome : uint8_t {
  kAgrees = 0,
  kDiffers = 1,
  kNotComparable = 2,  ///< nothing can be said: files, bounds or common steps are missing
};

/// "agree", "differ" or "not_comparable": the verdict of a command that has no names of its own.
std::string verdict_of(Outcome outcome);

/// The first place where two sides part. What a command does not know stays empty.
struct FirstDifference {
  std::optional<int64_t> step;         ///< from 1 on, as in metrics.jsonl
  std::optional<int64_t> micro_batch;  ///< from 0 on, of the step
  std::optional<int64_t> sample;       ///< from 0 on, of the run
  std::optional<int64_t> rank;         ///< global
  std::optional<std::string> pass;     ///< "forward" or "backward"
  std::optional<std::string> module;   ///< path: "decoder.layers.0.attention"
  std::optional<std::string> op;
  std::optional<std::string> tensor;  ///< logical name, or key, or column
  std::optional<std::string> source;  ///< "FILE:LINE"
  std::optional<double> distance;     ///< in the unit of `bound`
  std::optional<double> bound;        ///< the largest distance that would have been none
};

/// A row of a table: an object of texts, numbers, booleans or null; what is an array or object
/// itself is shown as JSON. Numbers may be NaN or infinite.
using Finding = nlohmann::ordered_json;

struct VerdictReport {
  std::string command;  ///< "checklist"
  Outcome outcome = Outcome::kAgrees;
  std::string verdict;               ///< empty: verdict_of(outcome)
  std::optional<std::string> stage;  ///< where the workflow ended: "config", "forward", ...
  std::optional<FirstDifference> first;
  /// Objects whose keys are the columns of the table, in the order in which they first come up. A
  /// row's "status", where it has one, decides how it is marked.
  std::vector<Finding> findings;

  // For people only: the JSON does not have these.
  std::string title;               ///< of the page: "ours.yaml and theirs.yaml"
  std::vector<std::string> lines;  ///< sentences, one each, above the table
  std::vector<report::LineChart> charts;
  std::vector<std::string> chart_runs;  ///< names of the runs of the charts, for the legend
  size_t text_rows = 200;               ///< rows that the text shows at most; 0: all

  int exit_code() const { return static_cast<int>(outcome); }
  std::string verdict_name() const { return verdict.empty() ? verdict_of(outcome) : verdict; }
};

/// For a terminal: verdict, first difference, lines, table, and the verdict again where a table
/// stood between. Texts are printable (plot::printable); ends with a line break.
std::string report_text(const VerdictReport& report);

/// {"command", "verdict", "stage", "first": {"step", "micro_batch", "sample", "rank", "pass",
/// "module", "op", "tensor", "source", "distance", "bound"}, "findings": [...]}. All keys are
/// always there: what is not known is null, and so is "first" as a whole. JSON has no NaN and no
/// infinities: they are the texts "nan", "inf" and "-inf", as in metrics.jsonl. Bytes that are no
/// UTF-8 become U+FFFD.
std::string report_json(const VerdictReport& report);

/// An HTML document that needs nothing from outside, in the style of pretrain_gpt --report. All
/// texts are escaped. `made` is the foot of the page.
std::string report_html(const VerdictReport& report, const std::string& made);

/// Where a report goes besides the terminal; empty: nowhere.
struct ReportFiles {
  std::string html;
  std::string json;
};

/// ValueError, naming the option, for names that do not end in .html and .json, and for folders
/// that do not exist: before the work, not after it.
void check_report_files(const ReportFiles& files);

/// Writes the files, whole or not at all, and returns a line for each that says so. IoError.
std::string write_report_files(const VerdictReport& report, const ReportFiles& files);

}  // namespace tapestry::accuracy
