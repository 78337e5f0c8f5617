#include "diagnosis/accuracy/curve_file.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "autograd/io/file_lines.h"
#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "diagnosis/report/plot/metrics_file.h"

namespace tapestry::accuracy {
namespace curve_file {
namespace {

constexpr double kAbsent = std::numeric_limits<double>::quiet_NaN();
constexpr const char* kExpected =
    "; expected metrics.jsonl, the output folder of a run, or a table with the columns step and "
    "loss";

// Collects points in the order of a file.
class CurveBuilder {
 public:
  void add(int64_t step, double loss, double grad_norm) {
    if (!run_.steps.empty() && step <= run_.steps.front()) {
      run_ = {};
      run_.notes.emplace_back(
          concat("the file has several runs; the last one counts, which begins at step ", step));
    } else if (!run_.steps.empty() && step <= run_.steps.back()) {
      cut(step);
    }
    run_.steps.push_back(step);
    run_.loss.push_back(loss);
    run_.grad_norm.push_back(grad_norm);
  }
  void note(std::string text) { run_.notes.push_back(std::move(text)); }
  bool empty() const { return run_.steps.empty(); }

  CurveRun take() && {
    if (std::all_of(run_.grad_norm.begin(), run_.grad_norm.end(),
                    [](double norm) { return std::isnan(norm); })) {
      run_.grad_norm.clear();
    }
    return std::move(run_);
  }

 private:
  void cut(int64_t step) {
    const auto kept = static_cast<size_t>(
        std::lower_bound(run_.steps.begin(), run_.steps.end(), step) - run_.steps.begin());
    run_.notes.push_back(concat("from step ", step, " on trained again; the earlier ",
                                run_.steps.size() - kept, " do not count"));
    run_.steps.resize(kept);
    run_.loss.resize(kept);
    run_.grad_norm.resize(kept);
  }

  CurveRun run_;
};

// ---- metrics.jsonl.

std::optional<double> json_number(const plot::MetricsLine& line, const char* key) {
  const auto found = line.json.find(key);
  if (found == line.json.end()) {
    return std::nullopt;
  }
  const std::optional<double> value = plot::metrics_number(*found);
  check<IoError>(value.has_value() || found->is_null(), line.place, ": '", key, "' is ",
                 found->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
                 "; expected a number");
  return value;
}

CurveRun read_metrics_curve(const std::string& file) {
  CurveBuilder builder;
  const bool complete = plot::read_metrics_lines(file, [&](const plot::MetricsLine& line) {
    const std::optional<double> loss = json_number(line, "loss");
    check<IoError>(loss.has_value(), line.place, ": 'loss' is missing", kExpected);
    builder.add(line.step, *loss, json_number(line, "grad_norm").value_or(kAbsent));
  });
  if (!complete) {
    builder.note("the last line of the file is incomplete and left out");
  }
  return std::move(builder).take();
}

// ---- Tables.

std::string trimmed(std::string text) {
  const auto blank = [](unsigned char letter) { return std::isspace(letter) != 0; };
  text.erase(text.begin(), std::find_if_not(text.begin(), text.end(), blank));
  text.erase(std::find_if_not(text.rbegin(), text.rend(), blank).base(), text.end());
  return text;
}

// Cells of a line; one in quotes may hold the separator, and quotes as "" (RFC 4180).
std::vector<std::string> cells_of(const std::string& line, char separator) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const bool doubled = quoted && line[i] == '"' && i + 1 < line.size() && line[i + 1] == '"';
    if (doubled) {
      cells.back() += line[i++];
    } else if (line[i] == '"') {
      quoted = !quoted;
    } else if (line[i] == separator && !quoted) {
      cells.emplace_back();
    } else {
      cells.back() += line[i];
    }
  }
  std::transform(cells.begin(), cells.end(), cells.begin(), trimmed);
  return cells;
}

// "train/Grad-Norm" is grad_norm.
std::string column_name(std::string name) {
  for (const std::string_view before : {"/", " - "}) {
    const size_t at = name.rfind(before);
    name = at == std::string::npos ? name : name.substr(at + before.size());
  }
  for (char& letter : name) {
    letter = letter == '-' || letter == ' '
                 ? '_'
                 : static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  return name;
}

struct Columns {
  size_t step = 0;
  size_t loss = 0;
  std::optional<size_t> grad_norm;
};

std::optional<size_t> find_column(const std::vector<std::string>& header,
                                  std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    for (size_t i = 0; i < header.size(); ++i) {
      if (column_name(header[i]) == name) {
        return i;
      }
    }
  }
  return std::nullopt;
}

Columns find_columns(const std::vector<std::string>& header, const std::string& place) {
  const auto step = find_column(header, {"step", "iteration", "iter"});
  const auto loss = find_column(header, {"loss", "lm_loss", "train_loss", "value"});
  std::string found;
  for (const std::string& name : header) {
    found += (found.empty() ? "" : ", ") + name;
  }
  check<IoError>(step.has_value(), place, ": no column step among '", found, "'", kExpected);
  check<IoError>(loss.has_value(), place, ": no column loss among '", found, "'", kExpected);
  return {*step, *loss, find_column(header, {"grad_norm", "global_norm"})};
}

double table_number(const std::string& cell, const char* column, const std::string& place) {
  if (cell.empty()) {
    return kAbsent;
  }
  char* end = nullptr;
  const double value = std::strtod(cell.c_str(), &end);
  check<IoError>(*end == '\0', place, ": ", column, " is '", cell, "'; expected a number");
  return value;
}

int64_t table_step(const std::string& cell, const std::string& place) {
  constexpr double kMostSteps = 1e15;
  const double step = table_number(cell, "step", place);
  check<IoError>(step >= 0 && step < kMostSteps && step == std::floor(step), place, ": step is '",
                 cell, "'; expected a whole number");
  return static_cast<int64_t>(step);
}

char separator_of(const std::string& header) {
  for (const char separator : {',', ';', '\t'}) {
    if (header.find(separator) != std::string::npos) {
      return separator;
    }
  }
  return ',';
}

CurveRun read_table(const std::string& file_name) {
  FileLines lines(file_name);
  CurveBuilder builder;
  std::optional<Columns> columns;
  char separator = ',';
  for (std::string line; lines.next(line);) {
    take_newline(line);
    const std::string place = concat(file_name, ":", lines.number());
    if (trimmed(line).empty()) {
      continue;
    }
    if (!columns) {
      separator = separator_of(line);
      columns = find_columns(cells_of(line, separator), place);
      continue;
    }
    const std::vector<std::string> cells = cells_of(line, separator);
    const size_t needed =
        1 + std::max({columns->step, columns->loss, columns->grad_norm.value_or(0)});
    check<IoError>(cells.size() >= needed, place, ": has ", cells.size(),
                   " cells; the header asks for ", needed);
    // Logs that share a table have rows for other things.
    if (!cells[columns->loss].empty()) {
      builder.add(table_step(cells[columns->step], place),
                  table_number(cells[columns->loss], "loss", place),
                  columns->grad_norm ? table_number(cells[*columns->grad_norm], "grad_norm", place)
                                     : kAbsent);
    }
  }
  check<IoError>(!builder.empty(), file_name, ": has no step with a loss", kExpected);
  return std::move(builder).take();
}

// Lines of JSON begin with a brace; tables cannot.
bool begins_with_a_brace(const std::string& file_name) {
  const InputFile file(file_name);
  std::string begin(size_t{1} << 12U, '\0');
  begin.resize(file.read_some(0, begin.data(), begin.size(), "content"));
  return trimmed(std::move(begin)).starts_with('{');
}

}  // namespace
}  // namespace curve_file

CurveRun read_curve(const std::string& path) {
  const std::string file = plot::metrics_file(path);
  return file != path || curve_file::begins_with_a_brace(file)
             ? curve_file::read_metrics_curve(file)
             : curve_file::read_table(file);
}

std::vector<CurveRun> read_curves(const std::vector<std::string>& paths) {
  const std::vector<std::string> names = plot::run_names(paths);
  std::vector<CurveRun> runs;
  for (size_t i = 0; i < paths.size(); ++i) {
    runs.push_back(read_curve(paths[i]));
    runs.back().name = names[i];
  }
  return runs;
}

}  // namespace tapestry::accuracy
